"""The HTTP/1.1 server: connections of clients, and the requests and answers on them.

Written around httptools' parser, as the way to engines is: a proxy that does nothing else takes half the time of one
around a general server. Every wait has a deadline: for a head, a body, a reader, the next request. Knows nothing of
models.
"""
