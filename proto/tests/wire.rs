//! Keeps the wire compatible: what `wire.golden` lists must stay as it is; new lines may only be added.
//!
//! Run with `UPDATE_GOLDEN=1` after adding a field, message or method.

#![allow(
    clippy::unwrap_used,
    reason = "test code outside of test functions, which the configuration's exceptions don't cover"
)]

use std::collections::BTreeSet;
use std::path::Path;

use prost::Message;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorSet};

#[test]
fn everything_that_was_ever_on_the_wire_is_still_there() {
    let (golden, now) = (golden(), listing());
    let lost: Vec<_> = golden.difference(&now).collect();
    assert!(
        lost.is_empty(),
        "these were removed or changed, which breaks peers of another version: {lost:#?}"
    );
}

#[test]
fn everything_on_the_wire_is_listed() {
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        let mut text = listing().into_iter().collect::<Vec<_>>().join("\n");
        text.push('\n');
        std::fs::write(path(), text).unwrap();
    }
    let (golden, now) = (golden(), listing());
    let new: Vec<_> = now.difference(&golden).collect();
    assert!(new.is_empty(), "add these with UPDATE_GOLDEN=1: {new:#?}");
}

#[test]
fn a_changed_number_or_type_is_noticed() {
    let mut set = FileDescriptorSet::decode(kvasir_proto::FILE_DESCRIPTOR_SET).unwrap();
    let field = &mut set.file[0].message_type[0].field[0];
    field.number = Some(field.number() + 100);
    assert!(!golden().is_subset(&listing_of(&set)));
}

fn path() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/wire.golden")
}

fn golden() -> BTreeSet<String> {
    std::fs::read_to_string(path())
        .unwrap()
        .lines()
        .map(str::to_owned)
        .collect()
}

fn listing() -> BTreeSet<String> {
    listing_of(&FileDescriptorSet::decode(kvasir_proto::FILE_DESCRIPTOR_SET).unwrap())
}

fn listing_of(set: &FileDescriptorSet) -> BTreeSet<String> {
    let mut lines = BTreeSet::new();
    for file in &set.file {
        let package = file.package();
        for message in &file.message_type {
            list_message(package, message, &mut lines);
        }
        for kind in &file.enum_type {
            list_enum(package, kind, &mut lines);
        }
        for service in &file.service {
            for method in &service.method {
                lines.insert(format!(
                    "rpc {package}.{}/{} {}{} -> {}{}",
                    service.name(),
                    method.name(),
                    if method.client_streaming() { "stream " } else { "" },
                    method.input_type(),
                    if method.server_streaming() { "stream " } else { "" },
                    method.output_type(),
                ));
            }
        }
    }
    lines
}

fn list_message(scope: &str, message: &DescriptorProto, lines: &mut BTreeSet<String>) {
    let name = format!("{scope}.{}", message.name());
    lines.insert(format!("message {name}"));
    for field in &message.field {
        lines.insert(describe(&name, field, message));
    }
    for nested in &message.nested_type {
        list_message(&name, nested, lines);
    }
    for kind in &message.enum_type {
        list_enum(&name, kind, lines);
    }
}

fn describe(message_name: &str, field: &FieldDescriptorProto, message: &DescriptorProto) -> String {
    let kind = match field.r#type() {
        Type::Message | Type::Enum => field.type_name().to_owned(),
        scalar => scalar.as_str_name().trim_start_matches("TYPE_").to_lowercase(),
    };
    let presence = match (field.label(), field.proto3_optional(), field.oneof_index) {
        (Label::Repeated, ..) => "repeated ".to_owned(),
        (_, true, _) => "optional ".to_owned(),
        (_, false, Some(index)) => format!("oneof {} ", message.oneof_decl[index as usize].name()),
        _ => String::new(),
    };
    format!(
        "field {message_name}.{} = {} {presence}{kind}",
        field.name(),
        field.number()
    )
}

fn list_enum(scope: &str, kind: &EnumDescriptorProto, lines: &mut BTreeSet<String>) {
    for value in &kind.value {
        lines.insert(format!(
            "enum {scope}.{} {} = {}",
            kind.name(),
            value.name(),
            value.number()
        ));
    }
}
