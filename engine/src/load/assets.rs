//! The files for text: from the model's folder or from GGUF metadata, with what the configuration replaces.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use kvasir_client::TextAssetFiles;
use kvasir_config::ModelConfig;
use kvasir_text::{ASSET_NAMES, CHAT_TEMPLATE_JINJA, GENERATION_CONFIG_JSON, GgufVocab, TextAssets};
use kvasir_weights::{Checkpoint, Gguf, OptionalKey};

use super::{LoadError, read};

/// The text assets of a model.
///
/// # Errors
/// If a file can't be read, or the GGUF's vocabulary can't be used.
pub(super) fn of_checkpoint(
    checkpoint: &Checkpoint,
    model: &ModelConfig,
) -> Result<TextAssetFiles, LoadError> {
    let mut files = match checkpoint {
        Checkpoint::Gguf(gguf) => {
            let vocab = vocab(gguf)?;
            TextAssets::from_gguf(vocab)?.into_files()
        }
        Checkpoint::Safetensors(files) => of_folder(files.dir())?,
    };
    if let Some(path) = &model.chat_template.value {
        files.insert(CHAT_TEMPLATE_JINJA.to_owned(), read(path)?);
    }
    if let Some(path) = generation_config_path(&model.generation_config.value) {
        files.insert(GENERATION_CONFIG_JSON.to_owned(), read(&path)?);
    }
    Ok(files)
}

fn of_folder(folder: &Path) -> Result<TextAssetFiles, LoadError> {
    let present = ASSET_NAMES
        .iter()
        .map(|name| (name, folder.join(name)))
        .filter(|(_, path)| path.is_file());
    present
        .map(|(name, path)| Ok(((*name).to_owned(), read(&path)?)))
        .collect()
}

/// The file that `--generation-config` names: itself, or the one in the folder.
fn generation_config_path(source: &str) -> Option<PathBuf> {
    match source {
        "auto" | "vllm" => None,
        path => {
            let path = PathBuf::from(path);
            Some(if path.is_dir() {
                path.join(GENERATION_CONFIG_JSON)
            } else {
                path
            })
        }
    }
}

fn vocab(gguf: &Gguf) -> Result<GgufVocab, LoadError> {
    let strings = |key: &str| -> Result<Option<Vec<String>>, LoadError> {
        let array = gguf.get_str_array(key).optional()?;
        Ok(array.map(|array| array.iter().map(ToOwned::to_owned).collect()))
    };
    let id = |name: &str| -> Result<Option<u32>, LoadError> {
        Ok(gguf
            .get_u32(&format!("tokenizer.ggml.{name}_token_id"))
            .optional()?)
    };
    let flag = |name: &str| -> Result<Option<bool>, LoadError> {
        Ok(gguf.get_bool(&format!("tokenizer.ggml.{name}")).optional()?)
    };
    let text = |key: &str| -> Result<Option<String>, LoadError> {
        Ok(gguf.get_str(key).optional()?.map(ToOwned::to_owned))
    };
    Ok(GgufVocab {
        model: gguf.get_str("tokenizer.ggml.model")?.to_owned(),
        pre: text("tokenizer.ggml.pre")?,
        // A vocabulary without tokens is refused with its own message.
        tokens: strings("tokenizer.ggml.tokens")?.unwrap_or_default(),
        scores: gguf
            .get_f32_array("tokenizer.ggml.scores")
            .optional()?
            .map(<[f32]>::to_vec),
        token_types: gguf.get_i32_array("tokenizer.ggml.token_type").optional()?,
        merges: strings("tokenizer.ggml.merges")?,
        bos: id("bos")?,
        eos: id("eos")?,
        unk: id("unknown")?,
        pad: id("padding")?,
        eot: id("eot")?,
        add_bos: flag("add_bos_token")?,
        add_eos: flag("add_eos_token")?,
        add_space_prefix: flag("add_space_prefix")?,
        chat_template: text("tokenizer.chat_template")?,
        named_chat_templates: named_templates(gguf)?,
    })
}

/// Templates beside the main one, `tokenizer.chat_template.NAME`.
fn named_templates(gguf: &Gguf) -> Result<BTreeMap<String, String>, LoadError> {
    const PREFIX: &str = "tokenizer.chat_template.";
    let keys = gguf
        .metadata()
        .map(|(key, _)| key)
        .filter_map(|key| Some((key, key.strip_prefix(PREFIX)?)));
    keys.map(|(key, name)| Ok((name.to_owned(), gguf.get_str(key)?.to_owned())))
        .collect()
}
