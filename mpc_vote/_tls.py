"""TLS 1.3 and nothing older, on every connection of this process: imported before gRPC is.

gRPC for Python has no setting for the least version. But TLS 1.2 can only agree on a cipher suite
that fits the server's kind of key, and all keys here are of elliptic curves: where suites for RSA
keys are the only ones allowed, no handshake of TLS 1.2 succeeds. The suites of TLS 1.3 are not
concerned. gRPC reads the variable once, when it is loaded.
"""

from __future__ import annotations

import os

os.environ["GRPC_SSL_CIPHER_SUITES"] = "ECDHE-RSA-AES128-GCM-SHA256"
