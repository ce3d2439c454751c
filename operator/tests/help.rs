//! What the command says about itself, and how it ends.

use std::process::Command;

fn operator(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvasir-operator"));
    for variable in ["KVASIR_ENGINE_IMAGE", "KVASIR_GATEWAY_IMAGE"] {
        command.env_remove(variable);
    }
    command.args(arguments);
    command
}

#[test]
fn every_command_says_its_exit_codes_and_run_its_default_images() {
    for command in ["crd", "run", "ask", "explain"] {
        let output = operator(&[command, "--help"]).output().unwrap();
        let help = String::from_utf8(output.stdout).unwrap();
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(
            output.status.success() && help.contains("Exit code: 0 "),
            "{help}"
        );
        if command == "run" {
            let image = concat!("[default: kvasir:", env!("CARGO_PKG_VERSION"), "]");
            assert_eq!(help.matches(image).count(), 2, "{help}");
            assert!(help.contains("75 the lease was"), "{help}");
        }
    }
}

#[test]
fn what_cannot_be_used_ends_with_64() {
    for wrong in [&[][..], &["run", "--no-such-option"], &["explain", "chat"]] {
        let output = operator(wrong).output().unwrap();
        assert_eq!(output.status.code(), Some(64), "{wrong:?}");
    }
    let output = operator(&["--version"]).output().unwrap();
    assert_eq!(output.status.code(), Some(0));
}
