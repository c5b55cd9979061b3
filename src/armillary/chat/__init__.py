"""Messages to token ids and back.

It changes when a model family writes its conversations in another way. Tokens that the model
sampled are never encoded a second time: a longer conversation is the recorded ids plus the newly
rendered suffix.

Read first: `messages` (the one internal form), `template` (messages to ids), `parser` (ids to an
assistant turn, whole and streamed by the same code), `continuation` (is this history ours?).
"""
