//! The HTTP edge: OpenAI JSON over any EngineClient, with one route table.
