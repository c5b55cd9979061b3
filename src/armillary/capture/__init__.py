"""Where model calls arrive and become records.

It changes when agents speak another dialect or need another rule of admission. A call is in the
journal before its last byte is sent; what cannot be recorded exactly is an error, not a guess.

Read first: `session` (the one path of every call), `app` (the HTTP face of it), `dialects` (one
file per wire format), `listener` (sockets that name their attempt).
"""
