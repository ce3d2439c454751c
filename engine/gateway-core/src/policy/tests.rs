use super::*;
use crate::auth::Method;

/// The policy that `tests/decisions.txt` is about.
fn policy() -> Policy {
    let only = |names: &[&str]| Allowed::Only(names.iter().map(|name| (*name).to_owned()).collect());
    let scopes = |scopes: &[Scope]| scopes.iter().copied().collect::<Scopes>();
    let tenants = [
        (
            "reader",
            Tenant {
                scopes: scopes(&[Scope::Inference]),
                models: only(&["small", "large"]),
                adapters: only(&["legal"]),
                priority: 5,
                weight: 2,
                max_tokens: Some(100),
                ..Tenant::default()
            },
        ),
        (
            "root",
            Tenant {
                scopes: scopes(&[Scope::Inference, Scope::Operations, Scope::Admin]),
                models: Allowed::All,
                adapters: Allowed::All,
                priority: -1,
                weight: 10,
                max_tokens: None,
                ..Tenant::default()
            },
        ),
        (
            "watcher",
            Tenant {
                scopes: scopes(&[Scope::Operations]),
                models: Allowed::All,
                ..Tenant::default()
            },
        ),
        (
            "changer",
            Tenant {
                scopes: scopes(&[Scope::Admin]),
                ..Tenant::default()
            },
        ),
        ("nothing", Tenant::default()),
        (
            "no-models",
            Tenant {
                scopes: scopes(&[Scope::Inference]),
                ..Tenant::default()
            },
        ),
    ];
    Policy {
        tenants: tenants
            .into_iter()
            .map(|(name, tenant)| (TenantName::new(name).unwrap(), tenant))
            .collect(),
    }
}

/// The decision on one row: who, scope, and for inference model, adapter, tokens and priority; `-` stands for none.
fn decide(policy: &Policy, fields: &[&str]) -> String {
    let [who, scope, model, adapter, max_tokens, priority] = fields else {
        panic!("a row has six fields: {fields:?}");
    };
    let principal = match *who {
        "-" => Err(Reason::NoCredential),
        "bad" => Err(Reason::WrongSecret),
        name => Ok(Principal {
            tenant: TenantName::new(name).unwrap(),
            method: Method::ApiKey,
            subject: "k".to_owned(),
        }),
    };
    let given = |field: &str| (field != "-").then(|| field.to_owned());
    let entry = match policy.enter(Scope::parse(scope), principal.as_ref().map_err(|reason| *reason)) {
        Ok(entry) => entry,
        Err(denial) => return format!("{} {}", denial.answer().status(), denial.code()),
    };
    let Some(model) = given(model) else {
        return "ok".to_owned();
    };
    let wanted = ModelUse {
        model: &model,
        adapter: (*adapter != "-").then_some(*adapter),
        max_tokens: given(max_tokens).map(|text| text.parse().unwrap()),
        priority: given(priority).map(|text| text.parse().unwrap()),
    };
    match entry.grant(wanted) {
        Ok(grant) => {
            let tokens = grant
                .max_tokens
                .map_or("-".to_owned(), |tokens| tokens.to_string());
            format!(
                "ok tokens={tokens} priority={} weight={}",
                grant.priority, grant.weight
            )
        }
        Err(denial) => format!("{} {}", denial.answer().status(), denial.code()),
    }
}

#[test]
fn each_of_the_hundred_decisions_is_as_the_table_says() {
    let policy = policy();
    let rows: Vec<(&str, &str)> = include_str!("../../tests/decisions.txt")
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
        .map(|line| line.split_once(" => ").unwrap())
        .collect();
    assert!(rows.len() >= 100, "{} rows", rows.len());
    for (question, expected) in rows {
        let fields: Vec<&str> = question.split_whitespace().collect();
        assert_eq!(decide(&policy, &fields), expected.trim(), "{question}");
    }
}

#[test]
fn forbidden_and_unknown_models_are_answered_alike() {
    let policy = policy();
    let principal = Principal {
        tenant: TenantName::new("reader").unwrap(),
        method: Method::ApiKey,
        subject: String::new(),
    };
    let entry = policy.enter(Some(Scope::Inference), Ok(&principal)).unwrap();
    let ask = |model, adapter| {
        let wanted = ModelUse {
            model,
            adapter,
            ..ModelUse::default()
        };
        entry.grant(wanted).unwrap_err().answer()
    };
    let answers = [
        ask("of-another", None),
        ask("nowhere", None),
        ask("small", Some("of-another")),
    ];
    assert!(answers.iter().all(|answer| *answer == Answer::NoSuchModel));
}

#[test]
fn only_models_that_may_be_used_are_listed() {
    let policy = policy();
    let principal = |name: &str| Principal {
        tenant: TenantName::new(name).unwrap(),
        method: Method::ApiKey,
        subject: String::new(),
    };
    let reader = principal("reader");
    let reader = policy.enter(Some(Scope::Inference), Ok(&reader)).unwrap();
    assert!(reader.sees_model("small"));
    assert!(!reader.sees_model("secret"));
    assert!(!Entry::Public.sees_model("small"));
}

#[test]
fn the_default_policy_denies_every_scope_but_public() {
    let principal = Principal {
        tenant: TenantName::new("reader").unwrap(),
        method: Method::ApiKey,
        subject: String::new(),
    };
    for scope in Scope::ALL {
        let entry = Policy::default().enter(Some(scope), Ok(&principal)).map(|_| ());
        let expected = if scope == Scope::Public {
            Ok(())
        } else {
            Err(Denial::UnknownTenant)
        };
        assert_eq!(entry, expected);
    }
}
