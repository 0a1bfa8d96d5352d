"""From the spans of an attempt to what is learned from them: triplets and chat messages. Pure: spans in, data out."""
