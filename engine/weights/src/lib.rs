//! Model files: GGUF and safetensors parsing that trusts no size, digests, and the memory map.
