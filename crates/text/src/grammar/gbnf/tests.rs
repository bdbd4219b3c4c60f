use std::collections::BTreeSet;

use llguidance::ParserFactory;
use llguidance::api::TopLevelGrammar;
use proptest::prelude::*;
use toktrie::ApproximateTokEnv;

use super::*;

/// The definition: the ends of everything that a node matches from `start` on.
fn ends(rules: &Rules, node: &Node, text: &[char], start: usize) -> BTreeSet<usize> {
    match node {
        Node::Chars(chars) => {
            let is_in = text.get(start).is_some_and(|&char| chars.meets(&CharSet::single(char)));
            is_in.then_some(start + 1).into_iter().collect()
        }
        Node::Sequence(parts) => parts.iter().fold(BTreeSet::from([start]), |at, part| {
            at.into_iter().flat_map(|start| ends(rules, part, text, start)).collect()
        }),
        Node::Either(options) => options.iter().flat_map(|option| ends(rules, option, text, start)).collect(),
        Node::Rule(rule) => ends(rules, &rules.bodies[*rule], text, start),
        Node::Repeat { of, min, max } => {
            let mut at = BTreeSet::from([start]);
            let mut reached = if *min == 0 { at.clone() } else { BTreeSet::new() };
            for count in 1..=max.unwrap_or(min + text.len() as u32 + 1) {
                at = at.into_iter().flat_map(|start| ends(rules, of, text, start)).collect();
                if count >= *min {
                    reached.extend(&at);
                }
            }
            reached
        }
    }
}

struct Compiled(llguidance::Matcher);

impl Compiled {
    fn new(source: &str) -> Self {
        let lark = to_lark(source).unwrap_or_else(|error| panic!("{error}\n{source}"));
        let factory = ParserFactory::new_simple(&ApproximateTokEnv::single_byte_env()).unwrap();
        let parser = factory.create_parser(TopLevelGrammar::from_lark(lark.clone()));
        let parser = parser.unwrap_or_else(|error| panic!("{error}\n{source}\n{lark}"));
        Self(llguidance::Matcher::new(Ok(parser)))
    }

    fn matches(&self, text: &str) -> bool {
        let mut matcher = self.0.deep_clone();
        let ids: Vec<u32> = text.bytes().map(u32::from).collect();
        matcher.try_consume_tokens(&ids).unwrap() == ids.len()
            && (matcher.is_stopped() || matcher.is_accepting().unwrap())
    }
}

/// All texts over the alphabet with at most `length` characters.
fn texts(alphabet: &[char], length: usize) -> Vec<String> {
    let mut all = vec![String::new()];
    let mut last = all.clone();
    for _ in 0..length {
        last = last.iter().flat_map(|text| alphabet.iter().map(move |char| format!("{text}{char}"))).collect();
        all.extend(last.iter().cloned());
    }
    all
}

fn check_language(source: &str, alphabet: &[char], length: usize) {
    let rules = parse::rules(source).unwrap();
    let compiled = Compiled::new(source);
    for text in texts(alphabet, length) {
        let chars: Vec<char> = text.chars().collect();
        let expect = ends(&rules, &rules.bodies[rules.root], &chars, 0).contains(&chars.len());
        assert_eq!(compiled.matches(&text), expect, "{text:?} in\n{source}\n{}", to_lark(source).unwrap());
    }
}

#[test]
fn the_language_is_the_same_where_the_longest_lexeme_is_the_wrong_one() {
    let ab = ['a', 'b'];
    check_language(r#"root ::= ("ab" | "a") ("b" root)?"#, &ab, 6);
    check_language(r#"root ::= [a-b]+ "a" ("b" root "b")?"#, &ab, 6);
    check_language(r#"root ::= "a" root? "ab" | "a""#, &ab, 6);
    check_language(r#"root ::= "a"* "b" | "(" root ")""#, &['a', 'b', '(', ')'], 5);
    check_language(r#"root ::= word | "é" root "è" "#.replace("word", "[éa]+ \"è\"?").as_str(), &['a', 'é', 'è'], 5);
    check_language("root ::= \"\"", &ab, 2);
    check_language(
        r#"root ::= ("a"?)* root2 {2,3}
root2 ::= "b" | "(" root ")""#,
        &['a', 'b', '(', ')'],
        5,
    );
}

/// Sources of random parts over `a`, `b` and the rules `x` and `y`.
fn part() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("\"a\"".to_owned()),
        Just("\"b\"".to_owned()),
        Just("\"ab\"".to_owned()),
        Just("[ab]".to_owned()),
        Just("[^a]".to_owned()),
        Just("\"\"".to_owned()),
        Just("\"a\" x".to_owned()),
        Just("\"b\" y".to_owned()),
        Just("y".to_owned()),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 1..4).prop_map(|parts| format!("({})", parts.join(" "))),
            prop::collection::vec(inner.clone(), 1..4).prop_map(|parts| format!("({})", parts.join(" | "))),
            (inner, prop::sample::select(vec!["*", "+", "?", "{2}", "{1,2}", "{0,2}", "{2,}"]))
                .prop_map(|(part, repetition)| format!("({part}){repetition}")),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn the_language_is_the_same_for_random_grammars(root in part(), x in part(), y in part()) {
        let source = format!("root ::= {root}\nx ::= {x}\ny ::= {y}\n");
        let rules = parse::rules(&source).unwrap();
        if rules.refuse_left_recursion().is_ok() {
            check_language(&source, &['a', 'b'], 5);
        }
    }
}

#[test]
fn the_usual_grammars_keep_large_lexemes() {
    let json = r#"
        root ::= object
        value ::= object | array | string | ("true" | "null") ws
        object ::= "{" ws (string ":" ws value ("," ws string ":" ws value)*)? "}" ws
        array ::= "[" ws (value ("," ws value)*)? "]" ws
        string ::= "\"" ([^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}))* "\"" ws
        ws ::= | " " | "\n" [ \t]{0,20}
    "#;
    let json = json.replace("\n        ", "\n");
    let rules = parse::rules(&json).unwrap();
    let division = lexemes::divide(&rules);
    let is_string = |node: &&Node| matches!(node, Node::Rule(rule) if rules.names[*rule] == "string");
    assert!(division.lexemes.iter().any(|lexeme| is_string(&&lexeme.clone())), "{:#?}", division.lexemes);
    // What is regular as a whole is one lexeme.
    let regular = parse::rules("root ::= [0-9]+ (\".\" [0-9]+)? ws\nws ::= \" \"*").unwrap();
    assert_eq!(lexemes::divide(&regular).lexemes.len(), 1);
}

#[test]
fn mistakes_are_told_with_their_line() {
    let check = |source: &str, line: usize, part: &str| match to_lark(source).unwrap_err() {
        GrammarError::Syntax { line: got, problem, .. } => {
            assert!(got == line && problem.contains(part), "line {got}: {problem}");
        }
        other => panic!("{other}"),
    };
    check("a ::= \"x\"", 1, "\"root\"");
    check("root ::= a\n\na ::= b", 3, "\"b\" is not defined");
    check("# c\nroot ::= root \"a\" | \"b\"", 2, "left-recursive");
    check("root ::= \"x\" a\na ::= \"\"? b\nb ::= a?", 2, "left-recursive");
    check("root ::= \"a\nb\"\nroot ::= \"b\"", 3, "defined twice");
    check("root ::= \"a", 1, "does not end");
    check("root ::= [z-a]", 1, "runs backwards");
    check("root ::= \"\\q\"", 1, "unknown escape \\q");
    check("root ::= \"\\ud800\"", 1, "hexadecimal");
    check("root ::= (\"a\"", 1, "not closed");
    check("root ::= \"a\"{3,2}", 1, "at most 2");
    check("root ::= \"a\"{9999}", 1, "2000");
    check("root ::= *", 1, "repeated");
    check("root ::= <|im_start|>", 1, "tokens cannot be named");
    check("root \"a\"", 1, "expected ::=");
    check("root ::= [^\\x00-\\U0010FFFF]", 1, "matches nothing");
}

#[test]
fn what_is_nested_or_doubled_too_often_is_refused_or_bounded() {
    let deep = format!("root ::= {}\"a\"{}", "(".repeat(60_000), ")".repeat(60_000));
    assert_eq!(to_lark(&deep).unwrap_err(), GrammarError::TooDeep { what: WHAT, max: 64 });
    // Written out, this would have 2^40 characters.
    let doubled: String = (0..40).map(|rule| format!("r{rule} ::= r{0} r{0}\n", rule + 1)).collect();
    let lark = to_lark(&format!("root ::= r0\n{doubled}r40 ::= \"a\"\n")).unwrap();
    assert!(lark.len() < 10_000, "{}", lark.len());
    assert!(to_lark(&format!("root ::= r0\n{doubled}r40 ::= \"\"\n")).is_ok());
}
