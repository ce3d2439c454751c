//! Compiles the .proto files with protox, so that no protoc is needed.

use std::path::PathBuf;

use prost::Message;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let files = protox::compile(["kvasir/engine/v1/engine.proto"], ["proto"])?;
    let mut bare = files.clone();
    for file in &mut bare.file {
        // Comments and positions: they aren't part of the wire.
        file.source_code_info = None;
    }
    let out = PathBuf::from(std::env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR for build scripts")?);
    std::fs::write(out.join("descriptors.bin"), bare.encode_to_vec())?;

    let mut config = tonic_prost_build::Config::new();
    config.bytes(["."]);
    tonic_prost_build::configure().compile_fds_with_config(files, config)?;
    Ok(())
}
