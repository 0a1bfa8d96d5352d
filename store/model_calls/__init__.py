"""Reader and writer of model calls: requests, responses and streams of all protocols, and the attributes of spans."""

from store.model_calls.attributes import attributes_of
from store.model_calls.model_call import Choice, Message, MessagePart, ModelCall, Protocol, Usage
from store.model_calls.reading import read_call
from store.model_calls.recorded import call_of
from store.model_calls.streams import StreamReader, stream_reader

__all__ = [
    "Choice",
    "Message",
    "MessagePart",
    "ModelCall",
    "Protocol",
    "StreamReader",
    "Usage",
    "attributes_of",
    "call_of",
    "read_call",
    "stream_reader",
]
