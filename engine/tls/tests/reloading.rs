//! Files that change under open connections.

mod support;

use kvasir_tls::{ClientAuth, ClientTls, Reload, ServerTls, TlsError};
use support::*;

fn refused_because(reload: &Reload, part: &str) -> bool {
    matches!(reload, Reload::Refused(error) if error.to_string().contains(part))
}

#[tokio::test]
async fn a_renewed_certificate_serves_new_connections_and_leaves_old_ones_open() {
    let (files, authority) = Files::good();
    let (server, client) = (files.server(), files.client());
    let mut old = connected(&server, &client).await;
    assert!(matches!(server.poll(), Reload::Unchanged));
    files.write_leaf(
        "server",
        &authority.issue(&LeafSpec {
            names: &[engine()],
            begins: -1,
            ends: 9,
        }),
    );
    assert!(matches!(server.poll(), Reload::Reloaded));
    assert!(matches!(server.poll(), Reload::Unchanged));
    let new = connected(&server, &client).await;
    assert!(new.server_identity().not_after > old.server_identity().not_after);
    assert_eq!(Some(new.server_identity().not_after), server.not_after());
    assert!(old.is_alive().await);
}

#[tokio::test]
async fn a_clients_renewed_certificate_is_presented_to_the_next_server() {
    let (files, authority) = Files::good();
    let (server, client) = (files.server(), files.client());
    let mut old = connected(&server, &client).await;
    files.write_leaf(
        "client",
        &authority.issue(&LeafSpec {
            names: &[gateway(), dns("second")],
            begins: -1,
            ends: 9,
        }),
    );
    assert!(matches!(client.poll(), Reload::Reloaded));
    let new = connected(&server, &client).await;
    assert_eq!(new.client_identity().unwrap().names.len(), 2);
    assert!(old.is_alive().await);
}

#[tokio::test]
async fn an_authority_is_rotated_with_overlap_and_without_a_gap() {
    let (files, first) = Files::good();
    let second = Authority::new("second");
    let (server, old_client) = (files.server(), files.client());
    let mut oldest = connected(&server, &old_client).await;
    // Both are trusted before anybody uses the new one.
    let both = format!("{}{}", first.pem(), second.pem());
    files.write("client-ca.pem", &both);
    files.write("server-ca.pem", &both);
    assert!(matches!(server.poll(), Reload::Reloaded));
    assert!(matches!(old_client.poll(), Reload::Reloaded));
    connected(&server, &old_client).await;
    files.write_leaf("client", &second.valid(&[gateway()]));
    let new_client = files.client();
    connected(&server, &new_client).await;
    connected(&server, &old_client).await;
    files.write_leaf("server", &second.valid(&[engine()]));
    assert!(matches!(server.poll(), Reload::Reloaded));
    connected(&server, &new_client).await;
    connected(&server, &old_client).await;
    // The old one goes.
    files.write("client-ca.pem", &second.pem());
    assert!(matches!(server.poll(), Reload::Reloaded));
    connected(&server, &new_client).await;
    assert!(connect(&server, &old_client).await.is_err());
    assert!(oldest.is_alive().await);
}

#[tokio::test]
async fn a_ticket_does_not_outlive_the_authority_of_its_client() {
    let (files, _) = Files::good();
    let (server, client) = (files.server(), files.client());
    // The second connection resumes, and would do without a certificate.
    connected(&server, &client).await;
    let resumed = connected(&server, &client).await;
    let kind = resumed.client.get_ref().1.handshake_kind();
    assert_eq!(kind, Some(rustls::HandshakeKind::Resumed));
    files.write("client-ca.pem", &Authority::new("second").pem());
    assert!(matches!(server.poll(), Reload::Reloaded));
    assert!(connect(&server, &client).await.is_err());
}

#[tokio::test]
async fn files_that_cannot_be_used_change_nothing_and_are_reported() {
    let (files, authority) = Files::good();
    let (server, client) = (files.server(), files.client());
    let good = std::fs::read_to_string(files.path("server.pem")).unwrap();
    let other = authority.valid(&[engine()]);
    let cases = [
        ("", "holds no certificate"),
        ("not PEM at all", "holds no certificate"),
        ("-----BEGIN CERTIFICATE-----\nMIIB\n", "is no PEM file"),
        (
            "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
            "can't be used",
        ),
        (other.certificate.as_str(), "doesn't belong to the key"),
    ];
    for (content, reason) in cases {
        files.write("server.pem", content);
        let reload = server.poll();
        assert!(refused_because(&reload, reason), "{content:.40}: {reload:?}");
        connected(&server, &client).await;
    }
    std::fs::remove_file(files.path("server.pem")).unwrap();
    assert!(refused_because(&server.poll(), "can't read"));
    connected(&server, &client).await;
    files.write("server.pem", &good);
    assert!(matches!(server.poll(), Reload::Unchanged));
    files.write_leaf("server", &other);
    assert!(matches!(server.poll(), Reload::Reloaded));
    connected(&server, &client).await;
}

#[test]
fn a_bundle_with_one_bad_authority_is_refused_as_a_whole() {
    let (files, authority) = Files::good();
    let bad = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    files.write("client-ca.pem", &format!("{}{bad}", authority.pem()));
    let error = ServerTls::load(files.server_files(files.required()))
        .err()
        .unwrap();
    assert!(matches!(error, TlsError::Certificate { .. }), "{error}");
}

#[test]
fn a_file_larger_than_any_bundle_is_refused() {
    let (files, _) = Files::good();
    files.write("server.key", &" ".repeat((1 << 20) + 1));
    let error = ServerTls::load(files.server_files(ClientAuth::None))
        .err()
        .unwrap();
    assert!(
        matches!(
            error,
            TlsError::File(kvasir_files::FileError::TooLarge {
                num_bytes: 1_048_577,
                ..
            })
        ),
        "{error}"
    );
}

#[test]
fn a_missing_key_is_named() {
    let (files, _) = Files::good();
    files.write("client.key", "");
    let error = ClientTls::load(files.client_files()).err().unwrap();
    assert!(error.to_string().contains("client.key"), "{error}");
    assert!(
        error.to_string().contains(&*files.folder().to_string_lossy()),
        "{error}"
    );
}

#[test]
fn what_is_reloaded_prints_no_key() {
    let (files, _) = Files::good();
    let key = std::fs::read_to_string(files.path("client.key")).unwrap();
    let secret: String = key.lines().nth(1).unwrap().chars().take(20).collect();
    assert!(!format!("{:?}", files.client()).contains(&secret));
}
