//! Who may connect to whom, over real sockets.

mod support;

use kvasir_tls::{ClientAuth, ClientFiles, ClientTls, NameRule, ServerTls};
use rustls::ProtocolVersion;
use support::*;

async fn refused(files: &Files) -> Failure {
    let connection = connect(&files.server(), &files.client()).await;
    connection.err().expect("the connection must be refused")
}

fn has(text: Option<&str>, part: &str) -> bool {
    text.is_some_and(|text| text.contains(part))
}

#[tokio::test]
async fn a_good_pair_connects_and_each_side_knows_the_other() {
    let (files, _) = Files::good();
    let connection = connected(&files.server(), &files.client()).await;
    assert_eq!(connection.client_identity().unwrap().names, [gateway()]);
    assert_eq!(connection.server_identity().names, [engine()]);
    let (_, session) = connection.client.get_ref();
    assert_eq!(session.alpn_protocol(), Some(b"h2".as_slice()));
    assert_eq!(session.protocol_version(), Some(ProtocolVersion::TLSv1_3));
}

#[tokio::test]
async fn the_end_of_a_peers_certificate_is_known() {
    let (files, _) = Files::good();
    let server = files.server();
    let connection = connected(&server, &files.client()).await;
    assert_eq!(Some(connection.server_identity().not_after), server.not_after());
}

#[tokio::test]
async fn certificates_before_and_after_their_time_are_refused() {
    for (begins, ends) in [(-3, -1), (1, 3)] {
        let (files, authority) = Files::good();
        files.write_leaf(
            "server",
            &authority.issue(&LeafSpec {
                names: &[engine()],
                begins,
                ends,
            }),
        );
        let failure = refused(&files).await;
        assert!(
            has(failure.client.as_deref(), "invalid peer certificate"),
            "{failure:?}"
        );
        let (files, authority) = Files::good();
        files.write_leaf(
            "client",
            &authority.issue(&LeafSpec {
                names: &[gateway()],
                begins,
                ends,
            }),
        );
        let failure = refused(&files).await;
        assert!(
            has(failure.server.as_deref(), "invalid peer certificate"),
            "{failure:?}"
        );
    }
}

#[tokio::test]
async fn certificates_of_another_authority_are_refused() {
    let stranger = Authority::new("stranger");
    let (files, _) = Files::good();
    files.write_leaf("server", &stranger.valid(&[engine()]));
    let failure = refused(&files).await;
    assert!(has(failure.client.as_deref(), "UnknownIssuer"), "{failure:?}");
    let (files, _) = Files::good();
    files.write_leaf("client", &stranger.valid(&[gateway()]));
    let failure = refused(&files).await;
    assert!(has(failure.server.as_deref(), "UnknownIssuer"), "{failure:?}");
}

#[tokio::test]
async fn an_authority_of_the_same_name_is_still_another_one() {
    let (files, _) = Files::good();
    files.write_leaf("client", &Authority::new("first").valid(&[gateway()]));
    assert!(refused(&files).await.server.is_some());
}

#[tokio::test]
async fn a_server_with_another_name_is_refused_and_both_names_are_said() {
    let (files, authority) = Files::good();
    files.write_leaf("server", &authority.valid(&[dns("engine.other.svc")]));
    let failure = refused(&files).await;
    assert!(
        has(failure.client.as_deref(), "DNS:engine.other.svc"),
        "{failure:?}"
    );
    assert!(
        has(failure.client.as_deref(), "DNS:engine.chat.svc"),
        "{failure:?}"
    );
}

#[tokio::test]
async fn a_client_with_another_name_is_refused_and_both_names_are_said() {
    for names in [
        vec![uri("spiffe://kvasir/default/other/gateway")],
        vec![engine()],
        vec![],
    ] {
        let (files, authority) = Files::good();
        files.write_leaf("client", &authority.valid(&names));
        let failure = refused(&files).await;
        let presented = names
            .first()
            .map_or("no name at all".to_owned(), ToString::to_string);
        assert!(has(failure.server.as_deref(), &presented), "{failure:?}");
        assert!(
            has(
                failure.server.as_deref(),
                "URI:spiffe://kvasir/default/chat/gateway"
            ),
            "{failure:?}"
        );
        // The peer isn't told which names would do.
        assert!(!has(failure.client.as_deref(), "spiffe"), "{failure:?}");
    }
}

#[tokio::test]
async fn a_client_without_a_certificate_is_refused_where_one_is_required() {
    let (files, _) = Files::good();
    let nameless = ClientTls::load(ClientFiles {
        identity: None,
        ..files.client_files()
    })
    .unwrap();
    let failure = connect(&files.server(), &nameless).await.err().unwrap();
    assert!(
        has(failure.server.as_deref(), "peer sent no certificates"),
        "{failure:?}"
    );
    assert!(nameless.not_after().is_none());
}

#[tokio::test]
async fn optional_certificates_may_be_absent_but_not_bad() {
    let (files, _) = Files::good();
    let optional = ClientAuth::Optional {
        authorities: files.path("client-ca.pem"),
    };
    let server = ServerTls::load(files.server_files(optional)).unwrap();
    let nameless = ClientTls::load(ClientFiles {
        identity: None,
        ..files.client_files()
    })
    .unwrap();
    let connection = connected(&server, &nameless).await;
    assert_eq!(connection.client_identity(), None);
    let connection = connected(&server, &files.client()).await;
    assert_eq!(connection.client_identity().unwrap().names, [gateway()]);
    files.write_leaf("client", &Authority::new("stranger").valid(&[gateway()]));
    assert!(connect(&server, &files.client()).await.is_err());
}

#[tokio::test]
async fn a_server_that_asks_for_nothing_learns_nothing() {
    let (files, _) = Files::good();
    let server = ServerTls::load(files.server_files(ClientAuth::None)).unwrap();
    let connection = connected(&server, &files.client()).await;
    assert_eq!(connection.client_identity(), None);
}

#[tokio::test]
async fn one_of_several_expected_names_is_enough() {
    let (files, authority) = Files::good();
    files.write_leaf(
        "client",
        &authority.valid(&[dns("x"), uri("spiffe://kvasir/default/chat/operator")]),
    );
    let names = NameRule::any_of([gateway(), uri("spiffe://kvasir/default/chat/operator")]).unwrap();
    let both = ClientAuth::Required {
        authorities: files.path("client-ca.pem"),
        names,
    };
    let server = ServerTls::load(files.server_files(both)).unwrap();
    assert!(connect(&server, &files.client()).await.is_ok());
    assert!(connect(&files.server(), &files.client()).await.is_err());
}

#[tokio::test]
async fn http2_is_preferred_and_other_protocols_are_refused() {
    let (files, _) = Files::good();
    assert_eq!(
        negotiated(&files, &["http/1.1", "h2"]).await,
        Some(Some(b"h2".to_vec()))
    );
    assert_eq!(
        negotiated(&files, &["http/1.1"]).await,
        Some(Some(b"http/1.1".to_vec()))
    );
    assert_eq!(negotiated(&files, &[]).await, Some(None));
    assert_eq!(negotiated(&files, &["smtp"]).await, None);
}

#[tokio::test]
async fn garbage_ends_its_own_connection_only() {
    let (files, _) = Files::good();
    let server = files.server();
    let mut zeros = vec![0; 100_000];
    let mut half_a_hello = vec![22, 3, 1, 0, 200, 1, 0, 0, 196, 3, 3];
    half_a_hello.resize(60, 7);
    let mut endless_record = vec![22, 3, 3, 0xff, 0xff];
    endless_record.append(&mut zeros.clone());
    let mut empty_records = Vec::new();
    for _ in 0..10_000 {
        empty_records.extend([22, 3, 3, 0, 0]);
    }
    zeros.truncate(70_000);
    let noise: Vec<u8> = (0..50_000_u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    for garbage in [
        Vec::new(),
        vec![22],
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        // SSL 2.
        vec![0x80, 0x2e, 1, 0, 2, 0, 0x15, 0, 0, 0, 0x10],
        // A fatal alert.
        vec![21, 3, 3, 0, 2, 2, 40],
        half_a_hello,
        endless_record,
        empty_records,
        zeros,
        noise,
    ] {
        assert!(
            !accepts_garbage(&server, &garbage).await,
            "{:?}",
            &garbage[..garbage.len().min(12)]
        );
        assert!(connect(&server, &files.client()).await.is_ok());
    }
}
