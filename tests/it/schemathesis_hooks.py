"""Teaches schemathesis msgpack."""

import json

import msgpack
import schemathesis


@schemathesis.serializer("application/msgpack")
def write(ctx, value):
    try:
        return msgpack.packb(value, unicode_errors="surrogatepass")
    except (OverflowError, ValueError, TypeError):
        # Numbers that msgpack does not have; then the body is no msgpack at all.
        return json.dumps(value).encode()


def text(value):
    """Bytes as text: the document is written for JSON."""
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, list):
        return [text(part) for part in value]
    if isinstance(value, dict):
        return {key: text(part) for key, part in value.items()}
    return value


@schemathesis.deserializer("application/msgpack")
def read(ctx, response):
    return text(msgpack.unpackb(response.content))
