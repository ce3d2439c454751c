"""Makes the model goldens: tiny random models of the llama family, and what transformers computes with them in fp32.

Usage: make_model_goldens.py                      the tiny models, into models/
       make_model_goldens.py --smollm2 FILE.gguf  goldens of the default model, into smollm2/

Needs torch, transformers, gguf, accelerate and safetensors. The results are committed, so that nobody else does.
Each folder holds the model and
  golden.json         the prompt, the positions of the stored logits, greedy tokens with the margin of each over the
                      runner-up, and measured deviations (see `deviations`), from which the tests derive tolerances
  golden.safetensors  `logits`, one row for each position
"""

import argparse
import json
import os
import pathlib
import shutil

os.environ["HF_HUB_OFFLINE"] = "1"

import gguf
import numpy as np
import torch
import transformers
from gguf import GGMLQuantizationType as Kind
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama import modeling_llama

HERE = pathlib.Path(__file__).parent
VOCAB = 97
NUM_GREEDY = 16
torch.set_grad_enabled(False)
transformers.utils.logging.disable_progress_bar()


def eager_with_rounded_kv(dtype):
    """Attention that reads K and V rounded to `dtype`, as from a cache of that type."""

    def attention(module, query, key, value, attention_mask, **kwargs):
        return modeling_llama.eager_attention_forward(
            module, query, key.to(dtype).to(key.dtype), value.to(dtype).to(value.dtype), attention_mask, **kwargs)

    return attention


for name, dtype in (("kv_f16", torch.float16), ("kv_bf16", torch.bfloat16)):
    ALL_ATTENTION_FUNCTIONS.register(name, eager_with_rounded_kv(dtype))
    transformers.masking_utils.ALL_MASK_ATTENTION_FUNCTIONS.register(
        name, transformers.masking_utils.ALL_MASK_ATTENTION_FUNCTIONS["eager"])


def logits_of(model, tokens, attention="eager"):
    model.set_attn_implementation(attention)
    return model(torch.tensor([tokens]), use_cache=False).logits[0]


def margin_of(row):
    best = torch.topk(row, 2).values
    return float(best[0] - best[1])


def greedy(model, prompt, num_tokens):
    """Tokens and margins; computed from scratch each time, so that no cache has a part in it."""
    tokens, margins = list(prompt), []
    for _ in range(num_tokens):
        row = logits_of(model, tokens)[-1]
        margins.append(margin_of(row))
        tokens.append(int(row.argmax()))
    return tokens[len(prompt):], margins


def deviations(model, tokens, logits):
    """How far the logits of `tokens` move, at most, when something is changed:

    f64      all arithmetic in f64: the rounding error of the fp32 reference itself
    kv_f16   K and V rounded to f16
    kv_bf16  K and V rounded to bf16
    """
    result = {name: float((logits_of(model, tokens, name) - logits).abs().max()) for name in ("kv_f16", "kv_bf16")}
    model = model.double()
    result["f64"] = float((logits_of(model, tokens) - logits.double()).abs().max())
    model.float()
    return result


def write_golden(folder, model, seed, prompt_len):
    generator = torch.Generator().manual_seed(seed + 1000)
    vocab = model.config.vocab_size
    prompt = torch.randint(0, vocab, (prompt_len,), generator=generator).tolist()
    model = model.float().eval()
    logits = logits_of(model, prompt)
    positions = sorted({0, 1, 7, 15, 16, 17, prompt_len // 2, prompt_len - 1})
    tokens, margins = greedy(model, prompt, NUM_GREEDY)
    golden = {
        "prompt": prompt,
        "positions": positions,
        "greedy": tokens,
        "margins": margins,
        "max_abs_logit": float(logits.abs().max()),
        "deviations": deviations(model, prompt, logits),
    }
    (folder / "golden.json").write_text(json.dumps(golden) + "\n")
    save_file({"logits": logits[positions].contiguous()}, folder / "golden.safetensors")
    print(f"{folder.name:24} max logit {golden['max_abs_logit']:6.2f} least margin {min(margins):.4f} "
          f"{ {k: f'{v:.1e}' for k, v in golden['deviations'].items()} }")


def randomize(model, seed):
    """Weights of the size that trained ones have: activations keep their size, attention isn't uniform."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if name.endswith("norm.weight"):
            value = 1 + 0.2 * noise
        elif name.endswith("bias"):
            value = 0.2 * noise
        elif "embed_tokens" in name:
            # As a head it must not make every token predict itself.
            value = noise / (parameter.shape[1] ** 0.5 if model.config.tie_word_embeddings else 1)
        else:
            gain = 2.0 if ("q_proj" in name or "k_proj" in name) else 1.0
            value = gain * noise / parameter.shape[1] ** 0.5
        parameter.copy_(value)


def fresh(name):
    folder = HERE / "models" / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def base_config(kind=LlamaConfig, **changes):
    values = dict(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=56, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, rms_norm_eps=1e-5, bos_token_id=1, eos_token_id=2)
    values.update(changes)
    return kind(**values)


def as_old_config(path):
    """Rewrites config.json the way transformers 4 wrote it."""
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    kind = rope.pop("rope_type")
    config["rope_scaling"] = None if kind == "default" else {"type": kind, **rope}
    config["torch_dtype"] = config.pop("dtype")
    path.write_text(json.dumps(config, indent=2) + "\n")


def make_safetensors(name, seed, config, dtype, prompt_len, model_class=LlamaForCausalLM, old_config=False):
    folder = fresh(name)
    model = model_class(config)
    randomize(model, seed)
    model.to(dtype).save_pretrained(folder)
    (folder / "generation_config.json").unlink()
    if old_config:
        as_old_config(folder / "config.json")
    # Converting a model converts its rotary frequencies too; loading it doesn't.
    write_golden(folder, model_class.from_pretrained(folder, dtype=torch.float32), seed, prompt_len)


def rotate_part(rotary_dim):
    """Rotates only the first values of a head, as transformers does for families with `partial_rotary_factor`."""
    whole = modeling_llama.apply_rotary_pos_emb

    def apply(q, k, cos, sin, unsqueeze_dim=1):
        q_rotated, k_rotated = whole(q[..., :rotary_dim], k[..., :rotary_dim], cos, sin, unsqueeze_dim)
        return (torch.cat([q_rotated, q[..., rotary_dim:]], -1), torch.cat([k_rotated, k[..., rotary_dim:]], -1))

    return apply


def make_all_safetensors():
    rope = lambda kind, **values: {"rope_type": kind, "rope_theta": 10000.0, **values}
    f32, f16, bf16 = torch.float32, torch.float16, torch.bfloat16
    make_safetensors("llama-mha-untied", 1, base_config(num_key_value_heads=4), f32, 61)
    make_safetensors("llama-gqa-tied-linear", 2, base_config(
        tie_word_embeddings=True, rope_parameters=rope("linear", factor=2.0)), bf16, 47, old_config=True)
    make_safetensors("llama-mqa-llama3", 3, base_config(
        num_key_value_heads=1, head_dim=16, num_hidden_layers=3,
        rope_parameters=rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                             original_max_position_embeddings=32)), bf16, 72)
    make_safetensors("llama-bias-yarn", 4, base_config(
        attention_bias=True, mlp_bias=True,
        rope_parameters=rope("yarn", factor=4.0, original_max_position_embeddings=32)), f32, 90)
    make_safetensors("llama-yarn-mscale", 5, base_config(
        rope_parameters=rope("yarn", factor=4.0, original_max_position_embeddings=32, mscale=0.8, mscale_all_dim=0.5,
                             beta_fast=16.0, beta_slow=2.0, truncate=False)), f16, 66, old_config=True)
    make_safetensors("llama-dynamic", 6, base_config(rope_parameters=rope("dynamic", factor=2.0)), bf16, 55)
    factors = lambda start: [start + 0.25 * i for i in range(4)]
    make_safetensors("llama-longrope", 7, base_config(
        rope_parameters=rope("longrope", factor=8.0, original_max_position_embeddings=16, short_factor=factors(1.0),
                             long_factor=factors(2.0))), bf16, 40)
    make_safetensors("mistral-window", 8, base_config(MistralConfig, sliding_window=12, num_hidden_layers=3), bf16, 58,
                     MistralForCausalLM)
    make_safetensors("mistral-full", 9, base_config(MistralConfig, sliding_window=None, head_dim=12), f16, 43,
                     MistralForCausalLM)
    whole = modeling_llama.apply_rotary_pos_emb
    modeling_llama.apply_rotary_pos_emb = rotate_part(4)
    # transformers' llama ignores `partial_rotary_factor` for the default kind only.
    make_safetensors("llama-partial", 10, base_config(
        rope_parameters=rope("linear", factor=1.0, partial_rotary_factor=0.5)), bf16, 51)
    modeling_llama.apply_rotary_pos_emb = whole


HF_TO_GGUF = {
    "model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}


def gguf_name(name):
    if name in HF_TO_GGUF:
        return HF_TO_GGUF[name]
    _, _, layer, rest = name.split(".", 3)
    module, leaf = rest.rsplit(".", 1)
    return f"blk.{layer}.{HF_TO_GGUF[module]}.{leaf}"


def permute(weights, heads):
    """The order of Q and K rows in GGUF: pairs that rotate together lie side by side."""
    return weights.reshape(heads, 2, weights.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(weights.shape)


def unpermute(weights, heads):
    return weights.reshape(heads, weights.shape[0] // heads // 2, 2, -1).swapaxes(1, 2).reshape(weights.shape)


K_SCALES = {
    # Offset of d (and of dmin) in a block, and values that give weights a standard deviation of about 0.08.
    Kind.Q2_K: ((80, 0.009), (82, 0.0135)), Kind.Q3_K: ((108, 0.0019),), Kind.Q4_K: ((0, 0.0005), (2, 0.00375)),
    Kind.Q5_K: ((0, 0.00025), (2, 0.003875)), Kind.Q6_K: ((208, 0.00006),),
}


def random_blocks(rng, kind, rows, cols):
    """Valid blocks of a kind that the gguf package can't quantize to: any bits will do, only the scales need sense."""
    block_len, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (rows, cols // block_len, block_bytes), dtype=np.uint8)
    for offset, scale in K_SCALES[kind]:
        values = (scale * rng.uniform(0.5, 1.5, blocks.shape[:2])).astype(np.float16)
        blocks[:, :, offset:offset + 2] = values.view(np.uint8).reshape(*blocks.shape[:2], 2)
    return blocks.reshape(rows, -1)


def make_gguf(name, seed, config, kind, prompt_len, metadata=(), rope_freqs=None):
    """Writes a GGUF file, reads its weights back dequantized, and lets transformers compute with those."""
    folder = fresh(name)
    model = LlamaForCausalLM(config)
    randomize(model, seed)
    rng = np.random.default_rng(seed)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    writer = gguf.GGUFWriter(folder / "model.gguf", "llama")
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    for method, value in metadata:
        getattr(writer, method)(value)
    state = model.state_dict()
    for key in state:
        if key == "lm_head.weight" and config.tie_word_embeddings:
            continue
        weights = state[key].numpy()
        heads_here = next((count for part, count in heads.items() if part in key), None)
        if heads_here:
            weights = permute(weights, heads_here)
        if weights.ndim == 1:
            writer.add_tensor(gguf_name(key), weights)
            continue
        raw = random_blocks(rng, kind, *weights.shape) if kind in K_SCALES else gguf.quantize(weights, kind)
        writer.add_tensor(gguf_name(key), raw, raw_dtype=kind)
        weights = gguf.dequantize(raw, kind).reshape(weights.shape)
        state[key].copy_(torch.from_numpy(unpermute(weights, heads_here) if heads_here else weights))
    if rope_freqs is not None:
        writer.add_tensor("rope_freqs.weight", rope_freqs.numpy().astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    write_golden(folder, model, seed, prompt_len)


def llama3_divisors(config):
    """What the converter of llama.cpp stores for the llama3 kind: plain frequencies over scaled ones."""
    inv_freq, _ = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS["llama3"](config)
    dim = config.head_dim
    plain = 1.0 / config.rope_parameters["rope_theta"] ** (torch.arange(0, dim, 2, dtype=torch.float) / dim)
    return plain / inv_freq


def make_all_gguf():
    rope = lambda kind, **values: {"rope_type": kind, "rope_theta": 10000.0, **values}
    small = lambda **changes: base_config(hidden_size=64, intermediate_size=96, **changes)
    llama3 = small(tie_word_embeddings=True, rope_parameters=rope(
        "llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32))
    make_gguf("gguf-f16-llama3", 21, llama3, Kind.F16, 64, rope_freqs=llama3_divisors(llama3))
    make_gguf("gguf-bf16-linear", 22, small(rope_parameters=rope("linear", factor=2.0)), Kind.BF16, 45, [
        ("add_rope_scaling_type", gguf.RopeScalingType.LINEAR), ("add_rope_scaling_factor", 2.0)])
    make_gguf("gguf-q8_0-yarn", 23, small(rope_parameters=rope(
        "yarn", factor=4.0, original_max_position_embeddings=32)), Kind.Q8_0, 70, [
            ("add_rope_scaling_type", gguf.RopeScalingType.YARN), ("add_rope_scaling_factor", 4.0),
            ("add_rope_scaling_orig_ctx_len", 32)])
    make_gguf("gguf-q4_1-untied", 24, small(), Kind.Q4_1, 50)
    make_gguf("gguf-q4_0-tied", 25, small(tie_word_embeddings=True), Kind.Q4_0, 50)
    make_gguf("gguf-q5_0-mqa", 26, small(num_key_value_heads=1), Kind.Q5_0, 50)
    make_gguf("gguf-q5_1-headdim", 27, small(head_dim=24), Kind.Q5_1, 50)
    big = base_config(hidden_size=256, intermediate_size=256, num_hidden_layers=1, num_key_value_heads=1,
                      tie_word_embeddings=True)
    for seed, kind in enumerate(K_SCALES):
        make_gguf(f"gguf-{kind.name.lower()}", 31 + seed, big, kind, 44)


PROMPTS = [
    "What is the capital of France?",
    "Write a short poem about the sea.",
    "Explain why the sky is blue to a child.",
    "List three uses of a paper clip.",
    "Translate to French: the house is small.",
    "def fibonacci(n):",
    "Give me a recipe for pancakes.",
    "Who wrote Romeo and Juliet, and when?",
    "Summarize in one sentence: trees take in carbon dioxide and give off oxygen, which animals breathe.",
    "What is 17 plus 25?",
]


def make_smollm2(path):
    """Goldens of the default model with the weights of its GGUF file, dequantized."""
    folder, file = os.path.split(os.path.abspath(path))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=file)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=file, dtype=torch.float32,
        quantization_config=transformers.GgufConfig(dequantize=True)).eval()
    cases = []
    for text in PROMPTS:
        ids = tokenizer(f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n", add_special_tokens=False)
        prompt = list(ids["input_ids"])
        model.set_attn_implementation("eager")
        tokens, rows, cache, inputs = [], [], None, prompt
        for _ in range(40):
            out = model(torch.tensor([inputs]), past_key_values=cache, use_cache=True)
            cache, row = out.past_key_values, out.logits[0, -1]
            rows.append(row)
            tokens.append(int(row.argmax()))
            inputs = tokens[-1:]
        whole = prompt + tokens[:-1]
        logits = logits_of(model, whole)
        positions = sorted({0, len(prompt) // 2, len(prompt) - 1, len(whole) - 1})
        top = [torch.topk(logits[position], 20) for position in positions]
        cases.append({
            "prompt": prompt,
            "greedy": tokens,
            "margins": [margin_of(row) for row in rows],
            "positions": positions,
            "top_tokens": [best.indices.tolist() for best in top],
            "top_logits": [best.values.tolist() for best in top],
            "deviations": deviations(model, whole, logits),
        })
        print(f"{text[:40]:42} least margin {min(cases[-1]['margins']):.4f} "
              f"{ {k: f'{v:.1e}' for k, v in cases[-1]['deviations'].items()} } {tokenizer.decode(tokens)[:60]!r}")
    target = HERE / "smollm2"
    target.mkdir(exist_ok=True)
    lines = ",\n".join(json.dumps(case) for case in cases)
    (target / "golden.json").write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--smollm2", metavar="FILE.gguf")
    arguments = parser.parse_args()
    if arguments.smollm2:
        make_smollm2(arguments.smollm2)
    else:
        make_all_safetensors()
        make_all_gguf()
