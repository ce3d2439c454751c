//! Wire types of the OpenAI and vLLM routes: validation, errors and SSE frames, without I/O.
