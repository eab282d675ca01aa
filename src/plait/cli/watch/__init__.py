"""What ``plait top`` shows: ``source`` asks a server, ``threads`` looks at its process, ``frame`` makes numbers of two
looks at it, ``view`` draws them.
"""
