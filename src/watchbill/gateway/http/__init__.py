"""The HTTP/1.1 server: connections of clients, requests and answers on them, and which door an address means.

Written around httptools' parser, as the way to engines is. A request costs it a third of what a general server
takes, and every wait has a deadline: for a head, a body, a reader, the next request. Knows nothing of models.
"""
