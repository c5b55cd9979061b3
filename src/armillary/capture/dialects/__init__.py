"""One file per provider API; each is pure and stands on `capture.session`."""
