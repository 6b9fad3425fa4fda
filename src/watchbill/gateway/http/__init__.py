"""The HTTP/1.1 server: connections of clients, and the requests and answers on them.

Written around httptools' parser, as the client for engines is: a plain proxy on it takes half the time of one on a
general-purpose server. Every wait has a deadline: for a head, a body, a slow reader, the next request. Knows nothing of
models.
"""
