//! Which of a repository's files make up the model. Pure: names in, names out.

use kvasir_config::LoadFormat;

use super::{Wanted, has_extension, is_pickle};

/// Which of several GGUF files is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selector {
    /// The one of a quantization, such as `Q4_K_M`; compared without case.
    Quant(String),
    /// The one of this name.
    File(String),
}

/// Why no files can be chosen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectError {
    /// There is no file of the wanted name or quantization.
    #[error("it has no GGUF file for `{wanted}`; it has {}", list(.available))]
    NoMatch {
        /// What was wanted.
        wanted: String,
        /// The GGUF files that there are.
        available: Vec<String>,
    },
    /// Several files fit.
    #[error("several of its files fit; name one of {} as org/name:FILE", list(.available))]
    Several {
        /// The files that fit.
        available: Vec<String>,
    },
    /// The wanted file is split into parts.
    #[error(
        "{file} is one part of a split model, which is not supported; merge the parts or choose another file"
    )]
    Split {
        /// The first part.
        file: String,
    },
    /// There are weights, but only pickled ones.
    #[error(
        "its weights are pickled ({file}), which can run code when they are loaded; use a repository with safetensors or GGUF"
    )]
    Pickle {
        /// One of them.
        file: String,
    },
    /// safetensors are wanted, and there are none.
    #[error("it has no safetensors (model*.safetensors), which load-format asks for")]
    NoSafetensors,
    /// There are no weights at all.
    #[error("it has neither safetensors (model*.safetensors) nor GGUF files")]
    NoWeights,
}

/// The files to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Selection {
    /// All of them, small ones first.
    pub(super) files: Vec<String>,
    /// The GGUF file, if the model is one.
    pub(super) gguf: Option<String>,
}

/// Files beside safetensors that describe the model.
const DESCRIPTIONS: [&str; 6] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
];

const INDEX: &str = "model.safetensors.index.json";

/// Quantizations in the order of preference: good quality at four to five bits first, then larger, then smaller ones.
const PREFERENCE: [&str; 16] = [
    "Q4_K_M", "Q4_1", "Q4_0", "Q8_0", "Q5_K_M", "Q6_K", "Q4_K_S", "Q5_K_S", "Q5_1", "Q5_0", "Q3_K_M",
    "Q3_K_L", "Q2_K", "BF16", "F16", "F32",
];

/// Chooses among a repository's files.
pub(super) fn select(
    files: &[String],
    selector: Option<&Selector>,
    wanted: &Wanted,
) -> Result<Selection, SelectError> {
    let quantized = wanted.quantization.clone().map(Selector::Quant);
    // Where no file is called so, whoever opens the files that are chosen otherwise compares what is in them.
    let is_named =
        |quant: &str| wanted.format != LoadFormat::Safetensors && quant_file(files, quant) != Ok(None);
    let named = quantized
        .as_ref()
        .filter(|_| wanted.quantization.as_deref().is_some_and(is_named));
    match selector.or(named) {
        Some(Selector::File(wanted)) => match files.iter().find(|file| *file == wanted) {
            Some(file) => gguf(file),
            None => Err(SelectError::NoMatch {
                wanted: wanted.clone(),
                available: gguf_files(files),
            }),
        },
        Some(Selector::Quant(wanted)) => match quant_file(files, wanted)? {
            Some(file) => gguf(&file),
            None => Err(SelectError::NoMatch {
                wanted: wanted.clone(),
                available: gguf_files(files),
            }),
        },
        None => select_default(files, wanted.format),
    }
}

fn select_default(files: &[String], format: LoadFormat) -> Result<Selection, SelectError> {
    let weights: Vec<_> = files
        .iter()
        .filter(|file| format != LoadFormat::Gguf && is_model_safetensors(file))
        .cloned()
        .collect();
    if !weights.is_empty() {
        return Ok(safetensors(files, weights));
    }
    if format == LoadFormat::Safetensors {
        return Err(SelectError::NoSafetensors);
    }
    for quant in PREFERENCE {
        if let Some(file) = quant_file(files, quant)? {
            return gguf(&file);
        }
    }
    match gguf_files(files).as_slice() {
        [one] => gguf(one),
        [] => match files.iter().find(|file| is_pickle(file)) {
            Some(file) => Err(SelectError::Pickle { file: file.clone() }),
            None => Err(SelectError::NoWeights),
        },
        several => Err(SelectError::Several {
            available: several.to_vec(),
        }),
    }
}

fn safetensors(files: &[String], mut weights: Vec<String>) -> Selection {
    // Some repositories have both forms of the same weights; a reader prefers the single file.
    let single = weights.iter().position(|file| file == "model.safetensors");
    let mut all: Vec<String> = DESCRIPTIONS.map(str::to_owned).into();
    match single {
        Some(index) => weights = vec![weights.swap_remove(index)],
        None => all.push(INDEX.to_owned()),
    }
    all.retain(|wanted| files.contains(wanted));
    weights.sort_unstable();
    all.extend(weights);
    Selection {
        files: all,
        gguf: None,
    }
}

/// Whether a file is a part of the model in the layout of transformers. Others are copies in another layout
/// (`consolidated.safetensors`), adapters, or parts of a pipeline in a folder.
fn is_model_safetensors(file: &str) -> bool {
    file.starts_with("model") && has_extension(file, "safetensors") && !file.contains('/')
}

fn gguf(file: &str) -> Result<Selection, SelectError> {
    if is_split(file) {
        return Err(SelectError::Split {
            file: file.to_owned(),
        });
    }
    Ok(Selection {
        files: vec![file.to_owned()],
        gguf: Some(file.to_owned()),
    })
}

/// The one file of a quantization. Of the parts of a split model the first stands for all.
fn quant_file(files: &[String], quant: &str) -> Result<Option<String>, SelectError> {
    let fitting: Vec<_> = gguf_files(files)
        .into_iter()
        .filter(|file| has_quant(file, quant))
        .collect();
    match fitting.as_slice() {
        [] => Ok(None),
        [one] => Ok(Some(one.clone())),
        [first, ..] if is_split(first) => Ok(Some(first.clone())),
        several => Err(SelectError::Several {
            available: several.to_vec(),
        }),
    }
}

/// Models among the GGUF files, sorted: not the image encoders (`mmproj`) that lie beside some.
fn gguf_files(files: &[String]) -> Vec<String> {
    let is_model =
        |file: &&String| has_extension(file, "gguf") && !file.to_ascii_lowercase().contains("mmproj");
    let mut found: Vec<_> = files.iter().filter(is_model).cloned().collect();
    found.sort_unstable();
    found
}

/// Whether a file's name ends with a quantization (`m-Q4_K_M.gguf`, `m.Q4_1.gguf`, `Q8_0/m-00001-of-00002.gguf`):
/// the quantization must be bounded by what isn't part of such a name, so that `Q4_K` doesn't fit `Q4_K_M`.
fn has_quant(file: &str, quant: &str) -> bool {
    let stem = file.strip_suffix(".gguf").unwrap_or(file).to_ascii_uppercase();
    let quant = quant.to_ascii_uppercase();
    let is_part = |character: char| character.is_ascii_alphanumeric() || character == '_';
    stem.match_indices(&quant).any(|(start, _)| {
        let before = stem[..start].chars().next_back();
        let after = stem[start + quant.len()..].chars().next();
        !before.is_some_and(is_part) && !after.is_some_and(is_part)
    })
}

/// Whether a name ends like `-00001-of-00003.gguf`.
fn is_split(file: &str) -> bool {
    let stem = file.strip_suffix(".gguf").unwrap_or(file);
    let mut parts = stem.rsplit('-');
    let is_number = |part: Option<&str>| {
        part.is_some_and(|part| part.len() == 5 && part.bytes().all(|byte| byte.is_ascii_digit()))
    };
    is_number(parts.next()) && parts.next() == Some("of") && is_number(parts.next())
}

fn list(files: &[String]) -> String {
    if files.is_empty() {
        "none".to_owned()
    } else {
        files.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use kvasir_config::LoadFormat;

    use super::{SelectError, Selection, Selector, Wanted, select};

    fn choose(files: &[&str], selector: Option<&Selector>) -> Result<Selection, SelectError> {
        let files: Vec<_> = files.iter().map(ToString::to_string).collect();
        select(&files, selector, &Wanted::default())
    }

    #[test]
    fn of_both_forms_the_wanted_one_is_taken() {
        let files = ["config.json", "m.Q4_0.gguf", "m.Q8_0.gguf", "model.safetensors"].map(str::to_owned);
        let gguf = |format: LoadFormat, quantization: Option<&str>| {
            let wanted = Wanted {
                format,
                quantization: quantization.map(str::to_owned),
            };
            select(&files, None, &wanted).map(|selection| selection.gguf)
        };
        assert_eq!(gguf(LoadFormat::Auto, None), Ok(None));
        assert_eq!(gguf(LoadFormat::Gguf, None), Ok(Some("m.Q4_0.gguf".to_owned())));
        assert_eq!(
            gguf(LoadFormat::Auto, Some("q8_0")),
            Ok(Some("m.Q8_0.gguf".to_owned()))
        );
        assert_eq!(gguf(LoadFormat::Safetensors, Some("Q8_0")), Ok(None));
        assert_eq!(gguf(LoadFormat::Auto, Some("BF16")), Ok(None));
        let only = select(
            &files[..3],
            None,
            &Wanted {
                format: LoadFormat::Safetensors,
                quantization: None,
            },
        );
        assert_eq!(only, Err(SelectError::NoSafetensors));
    }

    fn quant(name: &str) -> Selector {
        Selector::Quant(name.to_owned())
    }

    #[test]
    fn single_safetensors_file_comes_with_its_descriptions() {
        let files = [
            "README.md",
            "model.safetensors",
            "tokenizer.json",
            "config.json",
            "pytorch_model.bin",
            "vocab.txt",
        ];
        let chosen = choose(&files, None).unwrap();
        assert_eq!(
            chosen.files,
            ["config.json", "tokenizer.json", "model.safetensors"]
        );
        assert_eq!(chosen.gguf, None);
    }

    #[test]
    fn shards_come_with_their_index_and_without_other_copies() {
        let files = [
            "consolidated.safetensors",
            "model-00002-of-00002.safetensors",
            "model-00001-of-00002.safetensors",
            "model.safetensors.index.json",
            "vae/model.safetensors",
        ];
        let expected = [
            "model.safetensors.index.json",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
        ];
        assert_eq!(choose(&files, None).unwrap().files, expected);
    }

    #[test]
    fn preferred_quantization_is_taken_where_none_is_named() {
        let files = ["m.Q8_0.gguf", "m.Q4_0.gguf", "m.Q4_1.gguf", "m.Q2_K.gguf"];
        assert_eq!(choose(&files, None).unwrap().gguf.unwrap(), "m.Q4_1.gguf");
        assert_eq!(choose(&["model.gguf"], None).unwrap().gguf.unwrap(), "model.gguf");
    }

    #[test]
    fn named_quantization_fits_whole_words_only() {
        let files = [
            "M-q4_k_m.gguf",
            "M-Q4_K_S.gguf",
            "mmproj-M-Q8_0.gguf",
            "M-IQ4_NL.gguf",
        ];
        assert_eq!(
            choose(&files, Some(&quant("Q4_K_M"))).unwrap().gguf.unwrap(),
            "M-q4_k_m.gguf"
        );
        assert_eq!(
            choose(&files, Some(&quant("iq4_nl"))).unwrap().gguf.unwrap(),
            "M-IQ4_NL.gguf"
        );
        for missing in ["Q4_K", "Q8_0", "4_K_M"] {
            assert!(
                matches!(
                    choose(&files, Some(&quant(missing))),
                    Err(SelectError::NoMatch { .. })
                ),
                "{missing}"
            );
        }
    }

    #[test]
    fn missing_quantization_is_answered_with_those_there_are() {
        let error = choose(&["m.Q8_0.gguf"], Some(&quant("Q4_0"))).unwrap_err();
        assert_eq!(
            error.to_string(),
            "it has no GGUF file for `Q4_0`; it has m.Q8_0.gguf"
        );
    }

    #[test]
    fn named_file_is_taken_as_it_is() {
        let wanted = Selector::File("d/m.gguf".to_owned());
        assert_eq!(
            choose(&["d/m.gguf", "m.Q4_0.gguf"], Some(&wanted)).unwrap().files,
            ["d/m.gguf"]
        );
        assert!(matches!(
            choose(&["m.gguf"], Some(&wanted)),
            Err(SelectError::NoMatch { .. })
        ));
    }

    #[test]
    fn ambiguous_files_are_never_guessed() {
        assert!(matches!(
            choose(&["a.gguf", "b.gguf"], None),
            Err(SelectError::Several { .. })
        ));
        assert!(matches!(
            choose(&["a.Q4_0.gguf", "b.Q4_0.gguf"], Some(&quant("Q4_0"))),
            Err(SelectError::Several { .. })
        ));
    }

    #[test]
    fn split_model_is_refused_by_name() {
        let files = ["m-Q4_0-00001-of-00002.gguf", "m-Q4_0-00002-of-00002.gguf"];
        let expected = SelectError::Split {
            file: files[0].to_owned(),
        };
        assert_eq!(choose(&files, Some(&quant("Q4_0"))).unwrap_err(), expected);
    }

    #[test]
    fn pickled_weights_are_refused_with_an_explanation() {
        let error = choose(&["config.json", "pytorch_model.bin"], None).unwrap_err();
        assert!(error.to_string().contains("can run code"), "{error}");
        assert_eq!(choose(&["README.md"], None).unwrap_err(), SelectError::NoWeights);
    }
}
