//! Addresses of models: `https://host/path/model.gguf#sha256=HEX`, one GGUF file and its digest.
//!
//! The engine fetches them and the operator writes them; what one refuses the other must not accept.

/// What comes between an address and the file's digest.
pub const DIGEST_MARK: &str = "#sha256=";

/// The name of the file that an address means, in front of its query; empty if it names none. Percent signs stay.
pub fn file_name(url: &str) -> &str {
    let url = url.split(['?', '#']).next().unwrap_or_default();
    let behind_scheme = url.split_once("://").map_or(url, |(_, rest)| rest);
    // Behind the host.
    let path = behind_scheme.split_once('/').map_or("", |(_, path)| path);
    path.rsplit('/').next().unwrap_or_default()
}

/// The name without its ending, if it is that of a GGUF file.
pub fn gguf_stem(file: &str) -> Option<&str> {
    let (stem, ending) = file.rsplit_once('.')?;
    (!stem.is_empty() && ending.eq_ignore_ascii_case("gguf")).then_some(stem)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_names_a_gguf_file_behind_its_host_and_in_front_of_its_query() {
        for (url, stem) in [
            ("https://h/m.gguf", Some("m")),
            ("https://h:8443/a/Model.Q4.GGUF?sig=x/y.bin#z", Some("Model.Q4")),
            ("https://h/m.gguf/", None),
            ("https://h/.gguf", None),
            ("https://h/gguf", None),
            ("https://h/m.bin?file=m.gguf", None),
            ("https://host.gguf", None),
            ("https://host.gguf/", None),
            ("https://h", None),
            ("", None),
        ] {
            assert_eq!(gguf_stem(file_name(url)), stem, "{url}");
        }
    }
}
