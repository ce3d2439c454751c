//! The decoder of the llama family, written once over the backend's operations.

use kvasir_backend::{AttentionBatch, AttentionSpec, Backend, BackendError, RopeTable};
use kvasir_weights::Checkpoint;

use crate::check::{Part, Tensor};
use crate::config::ModelConfig;
use crate::error::ModelError;
use crate::load::LoadProgress;
use crate::loader::Loader;

/// Rows whose logits are computed together. Bounds the buffer of logits (32 rows of a vocabulary of 128k are 16 MiB)
/// and is enough for the head's weights to be read once for most steps of decoding.
pub(crate) const HEAD_ROWS: usize = 32;

/// Weights and workspace. Rows of the workspace are the tokens of a step.
pub(crate) struct Transformer<B: Backend> {
    embedding: B::Matrix,
    /// None if the head is the embedding.
    head: Option<B::Matrix>,
    final_norm: B::Vector,
    layers: Vec<Layer<B>>,
    rope: RopeTable,
    attention: AttentionSpec,
    norm_eps: f32,
    activation: kvasir_backend::Activation,
    work: Workspace<B>,
}

/// The weights of one layer.
pub(crate) struct Layer<B: Backend> {
    pub(crate) attention_norm: B::Vector,
    pub(crate) qkv: B::Matrix,
    pub(crate) qkv_bias: Option<B::Vector>,
    pub(crate) output: B::Matrix,
    pub(crate) output_bias: Option<B::Vector>,
    pub(crate) mlp_norm: B::Vector,
    pub(crate) gate_up: B::Matrix,
    pub(crate) gate_up_bias: Option<B::Vector>,
    pub(crate) down: B::Matrix,
    pub(crate) down_bias: Option<B::Vector>,
}

struct Workspace<B: Backend> {
    /// The residual stream, `hidden_size` wide; after a forward pass, the last layer's output.
    residual: B::Buffer,
    normed: B::Buffer,
    qkv: B::Buffer,
    attended: B::Buffer,
    gate_up: B::Buffer,
    activated: B::Buffer,
    /// Up to [`HEAD_ROWS`] rows on their way through the head.
    head_rows: B::Buffer,
    head_normed: B::Buffer,
    logits: B::Buffer,
}

impl<B: Backend> Transformer<B> {
    /// Loads the weights of a checked checkpoint and makes room for steps of up to `max_num_tokens`.
    pub(crate) fn load(
        backend: &mut B,
        checkpoint: &Checkpoint,
        config: &ModelConfig,
        max_num_tokens: usize,
        max_model_len: usize,
        progress: &mut Option<&mut dyn FnMut(LoadProgress)>,
    ) -> Result<Self, ModelError> {
        let rope = config.rope.table(max_model_len, config.num_heads)?;
        let mut loader = Loader::new(backend, checkpoint, config, progress);
        let embedding = loader.matrix(&[Tensor::Embedding])?;
        let head = if config.tied_embeddings {
            None
        } else {
            Some(loader.matrix(&[Tensor::Head])?)
        };
        let final_norm = loader.vector(&[Tensor::FinalNorm])?;
        let layers = (0..config.num_layers)
            .map(|layer| load_layer(&mut loader, config, layer))
            .collect::<Result<_, _>>()?;
        let work = Workspace::new(backend, config, max_num_tokens).map_err(ModelError::Backend)?;
        Ok(Self {
            embedding,
            head,
            final_norm,
            layers,
            rope,
            attention: AttentionSpec {
                num_q_heads: config.num_heads,
                // Rounded once from f64, as transformers does.
                scale: (config.head_dim as f64).powf(-0.5) as f32,
                sliding_window: config.sliding_window,
            },
            norm_eps: config.rms_norm_eps,
            activation: config.activation,
            work,
        })
    }

    /// Runs all layers over `tokens`, which the batch assigns to sequences; the residual stream keeps the result.
    pub(crate) fn forward(
        &mut self,
        backend: &mut B,
        kv: &mut B::Kv,
        tokens: &[u32],
        batch: &AttentionBatch<'_>,
    ) -> Result<(), BackendError> {
        let Self {
            work, rope, norm_eps, ..
        } = self;
        backend.embed(&self.embedding, tokens, &mut work.residual)?;
        for (index, layer) in self.layers.iter().enumerate() {
            backend.rms_norm(&work.residual, &layer.attention_norm, *norm_eps, &mut work.normed)?;
            backend.linear(&layer.qkv, layer.qkv_bias.as_ref(), &work.normed, &mut work.qkv)?;
            backend.rope_and_store(&mut work.qkv, index, rope, batch, kv)?;
            backend.attention(&work.qkv, index, self.attention, batch, kv, &mut work.attended)?;
            backend.linear_add(
                &layer.output,
                layer.output_bias.as_ref(),
                &work.attended,
                &mut work.residual,
            )?;
            backend.rms_norm(&work.residual, &layer.mlp_norm, *norm_eps, &mut work.normed)?;
            backend.linear(
                &layer.gate_up,
                layer.gate_up_bias.as_ref(),
                &work.normed,
                &mut work.gate_up,
            )?;
            backend.gated_activation(&work.gate_up, self.activation, &mut work.activated)?;
            backend.linear_add(
                &layer.down,
                layer.down_bias.as_ref(),
                &work.activated,
                &mut work.residual,
            )?;
        }
        Ok(())
    }

    /// Computes the logits of up to [`HEAD_ROWS`] rows of the last forward pass.
    pub(crate) fn head(&mut self, backend: &mut B, rows: &[usize]) -> Result<(), BackendError> {
        let work = &mut self.work;
        backend.gather_rows(&work.residual, rows, &mut work.head_rows)?;
        backend.rms_norm(
            &work.head_rows,
            &self.final_norm,
            self.norm_eps,
            &mut work.head_normed,
        )?;
        let head = self.head.as_ref().unwrap_or(&self.embedding);
        backend.linear(head, None, &work.head_normed, &mut work.logits)
    }

    /// Copies the logits of the `index`-th row of the last call of `head`.
    pub(crate) fn read_logits(
        &self,
        backend: &mut B,
        index: usize,
        out: &mut [f32],
    ) -> Result<(), BackendError> {
        backend.read_row(&self.work.logits, index, out)
    }
}

fn load_layer<B: Backend>(
    loader: &mut Loader<'_, '_, B>,
    config: &ModelConfig,
    layer: usize,
) -> Result<Layer<B>, ModelError> {
    let at = |part| Tensor::Layer(layer, part);
    let weights = Layer {
        attention_norm: loader.vector(&[at(Part::AttentionNorm)])?,
        qkv: loader.matrix(&[at(Part::Query), at(Part::Key), at(Part::Value)])?,
        qkv_bias: loader.bias(
            config.biases.qkv,
            &[at(Part::QueryBias), at(Part::KeyBias), at(Part::ValueBias)],
        )?,
        output: loader.matrix(&[at(Part::AttentionOutput)])?,
        output_bias: loader.bias(config.biases.output, &[at(Part::AttentionOutputBias)])?,
        mlp_norm: loader.vector(&[at(Part::MlpNorm)])?,
        gate_up: loader.matrix(&[at(Part::Gate), at(Part::Up)])?,
        gate_up_bias: loader.bias(config.biases.mlp, &[at(Part::GateBias), at(Part::UpBias)])?,
        down: loader.matrix(&[at(Part::Down)])?,
        down_bias: loader.bias(config.biases.mlp, &[at(Part::DownBias)])?,
    };
    loader.release_file();
    Ok(weights)
}

impl<B: Backend> Workspace<B> {
    fn new(backend: &mut B, config: &ModelConfig, max_rows: usize) -> Result<Self, BackendError> {
        let head_rows = max_rows.min(HEAD_ROWS);
        Ok(Self {
            residual: backend.new_buffer(max_rows, config.hidden_size)?,
            normed: backend.new_buffer(max_rows, config.hidden_size)?,
            qkv: backend.new_buffer(max_rows, config.qkv_width())?,
            attended: backend.new_buffer(max_rows, config.attention_width())?,
            gate_up: backend.new_buffer(max_rows, 2 * config.intermediate_size)?,
            activated: backend.new_buffer(max_rows, config.intermediate_size)?,
            head_rows: backend.new_buffer(head_rows, config.hidden_size)?,
            head_normed: backend.new_buffer(head_rows, config.hidden_size)?,
            logits: backend.new_buffer(head_rows, config.vocab_size)?,
        })
    }
}
