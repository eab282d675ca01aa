#include "kv/prefix_index.h"

#include "base/test.h"

using plait::PrefixIndex;

namespace {

constexpr int32_t kBlockTokens = 4;
const std::vector<int32_t> kTokens = {1, 2, 3, 4};
const std::vector<int32_t> kOther = {1, 2, 3, 5};

}  // namespace

TEST(root_keys_differ_by_model_and_salt) {
  const auto root = PrefixIndex::root_key("model", "tenant");
  CHECK(root == PrefixIndex::root_key("model", "tenant"));
  CHECK(root != PrefixIndex::root_key("model", "tenanu"));
  CHECK(root != PrefixIndex::root_key("model2", "tenant"));
  CHECK(root != PrefixIndex::root_key("modelt", "enant"));  // where one ends and the other begins counts
  CHECK(PrefixIndex::root_key("", "") != PrefixIndex::root_key("", std::string_view("\0", 1)));
}

TEST(child_keys_differ_by_parent_and_tokens) {
  const auto root = PrefixIndex::root_key("m", "");
  const auto key = PrefixIndex::child_key(root, kTokens);
  CHECK(key == PrefixIndex::child_key(root, kTokens));
  CHECK(key != PrefixIndex::child_key(root, kOther));
  CHECK(key != PrefixIndex::child_key(key, kTokens));
  CHECK(key != root);
}

TEST(finds_what_was_published) {
  PrefixIndex index(3, kBlockTokens);
  const auto root = PrefixIndex::root_key("m", "");
  const auto key = PrefixIndex::child_key(root, kTokens);
  CHECK_EQ(index.find(key, root, kTokens), PrefixIndex::kNoBlock);
  CHECK(index.try_insert(key, root, kTokens, 2));
  CHECK(index.is_published(2) && !index.is_published(1));
  CHECK_EQ(index.find(key, root, kTokens), 2);
  CHECK(!index.try_insert(key, root, kTokens, 1));
  CHECK(!index.try_insert(PrefixIndex::child_key(key, kTokens), key, kTokens, 2));
  CHECK_EQ(index.num_published(), 1);
  index.erase(2);
  index.erase(2);
  CHECK_EQ(index.find(key, root, kTokens), PrefixIndex::kNoBlock);
  CHECK(index.try_insert(key, root, kTokens, 1));
  index.clear();
  CHECK_EQ(index.num_published(), 0);
  CHECK(!index.is_published(1));
}

TEST(a_hit_compares_tokens_and_parent) {
  PrefixIndex index(2, kBlockTokens);
  const auto root = PrefixIndex::root_key("m", "");
  const auto key = PrefixIndex::child_key(root, kTokens);
  CHECK(index.try_insert(key, root, kTokens, 0));
  // As if another prefix had the same digest.
  CHECK_EQ(index.find(key, root, kOther), PrefixIndex::kNoBlock);
  CHECK_EQ(index.find(key, key, kTokens), PrefixIndex::kNoBlock);
  CHECK_EQ(index.find(key, root, std::vector<int32_t>{1, 2, 3}), PrefixIndex::kNoBlock);
  CHECK(!index.try_insert(key, root, std::vector<int32_t>{1, 2, 3}, 1));
}

TEST_MAIN()
