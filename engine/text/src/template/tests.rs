//! Semantics of single constructs and the limits.

use super::*;

fn render(source: &str) -> Result<String, TextError> {
    ChatTemplate::compile(source)?.render(
        vec![
            ("text".to_owned(), Value::from("é\n\"<b>\"")),
            ("list".to_owned(), [1, 2].into_iter().collect()),
        ],
        1_709_208_000,
    )
}

#[test]
fn tag_generation_changes_no_text() {
    let source = "a\n{%- generation -%}\n b {% endgeneration %}\nc{{ '{% generation' }}";
    assert_eq!(render(source).unwrap(), "ab c{% generation");
}

#[test]
fn values_print_as_in_python() {
    let source =
        "{{ true }} {{ none }} {{ 1.0 }} {{ 1e20 }} {{ list }} {{ {'a': [none, 'it''s']} }} {{ missing }}.";
    let source = source.replace("''", "\\'");
    assert_eq!(
        render(&source).unwrap(),
        "True None 1.0 1e+20 [1, 2] {'a': [None, \"it's\"]} ."
    );
}

#[test]
fn tojson_is_json_dumps_without_escaping_for_html() {
    assert_eq!(render("{{ text | tojson }}").unwrap(), "\"é\\n\\\"<b>\\\"\"");
    assert_eq!(
        render("{{ text | tojson(ensure_ascii=true) }}").unwrap(),
        "\"\\u00e9\\n\\\"<b>\\\"\""
    );
    assert_eq!(
        render("{{ {'b': [1, 2.0], 'a': {}} | tojson }}").unwrap(),
        r#"{"b": [1, 2.0], "a": {}}"#
    );
    assert_eq!(
        render("{{ {'b': 1, 'a': [2]} | tojson(sort_keys=true, indent=2) }}").unwrap(),
        "{\n  \"a\": [\n    2\n  ],\n  \"b\": 1\n}"
    );
    assert_eq!(
        render("{{ [1, 2] | tojson(separators=(',', ':')) }}").unwrap(),
        "[1,2]"
    );
    assert!(render("{{ 1 | tojson(colour=1) }}").is_err());
}

#[test]
fn time_is_the_one_passed_in() {
    assert_eq!(render("{{ strftime_now('%d %b %Y') }}").unwrap(), "29 Feb 2024");
}

#[test]
fn refusal_of_the_template_is_its_own_words() {
    let error = render("{% macro m() %}{{ raise_exception('roles must alternate') }}{% endmacro %}{{ m() }}")
        .unwrap_err();
    assert!(
        matches!(&error, TextError::TemplateRefused { message } if message == "roles must alternate"),
        "{error}"
    );
}

#[test]
fn three_nested_loops_run_out_of_fuel() {
    // C65: GHSA-4hhp-h66f-j5j7.
    let source = "{% for a in range(999) %}{% for b in range(999) %}{% for c in range(999) %}{% endfor %}{% endfor %}{% endfor %}";
    assert!(matches!(
        render(source),
        Err(TextError::TemplateOutOfFuel { limit: MAX_STEPS })
    ));
}

#[test]
fn work_without_output_is_bounded_too() {
    for source in [
        "{% set n = namespace(s='x') %}{% for a in range(99) %}{% set n.s = n.s + n.s %}{% endfor %}",
        "{{ ('x' * 999999999) * 99 }}",
        "{% for a in range(9999) %}{{ 'x' * 99999 }}{% endfor %}",
        "{{ range(99999999999) | list }}",
        "{% set n = namespace(x=[]) %}{% for a in range(99) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x }}",
        "{% set n = namespace(x=[]) %}{% for a in range(99) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x | tojson }}",
        "{{ range(9999) | list | tojson(indent='x' * 99999) }}",
        "{{ 'a'.replace('a', 'a' * 9999999).replace('a', 'b' * 9999999) }}",
    ] {
        assert!(render(source).is_err(), "{source}");
    }
}

#[test]
fn endless_recursion_is_an_error() {
    assert!(render("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}").is_err());
    assert!(ChatTemplate::compile(&("{{ ".to_owned() + &"(".repeat(100_000))).is_err());
    assert!(ChatTemplate::compile(&"{% if a %}".repeat(100_000)).is_err());
}

#[test]
fn output_is_bounded() {
    let source = "{% set s = 'x' * 1000000 %}{% for a in range(50) %}{{ s }}{% endfor %}";
    assert!(matches!(
        render(source),
        Err(TextError::TemplateOutputTooLong { .. } | TextError::TemplateOutOfFuel { .. })
    ));
}

#[test]
fn syntax_error_names_the_line() {
    let error = ChatTemplate::compile("a\n{% if %}").unwrap_err();
    assert!(
        matches!(&error, TextError::TemplateSyntax { reason } if reason.contains("line 2")),
        "{error}"
    );
}

#[test]
fn lines_and_indents_are_those_of_python() {
    assert_eq!(render("{{ 'a\n\nb\n' | indent(2) }}|").unwrap(), "a\n\n  b\n|");
    assert_eq!(
        render("{{ 'a\n\nb' | indent('> ', first=true, blank=true) }}").unwrap(),
        "> a\n> \n> b"
    );
    assert_eq!(
        render("{{ 'a\r\nb\u{2028}c\n'.splitlines() }}").unwrap(),
        "['a', 'b', 'c']"
    );
    assert_eq!(render("{{ 'a\nb'.splitlines(true) }}").unwrap(), "['a\\n', 'b']");
}

#[test]
fn methods_of_python_strings_are_there() {
    for (expression, expected) in [
        ("' a '.strip() + '.'", "a."),
        ("'xxaxx'.strip('x')", "a"),
        ("'abc'.removeprefix('a').removesuffix('c')", "b"),
        ("'a=b=c'.partition('=') | join('|')", "a|=|b=c"),
        ("'a b c'.rsplit(' ', 1) | join('|')", "a b|c"),
        ("'Ab'.startswith(('x', 'A'))", "True"),
        ("[1, 2].index(2)", "1"),
        ("{'a': 1}.get('b', 'none')", "none"),
        ("none is iterable", "False"),
        ("missing is iterable", "True"),
    ] {
        assert_eq!(
            render(&format!("{{{{ {expression} }}}}")).unwrap(),
            expected,
            "{expression}"
        );
    }
}
