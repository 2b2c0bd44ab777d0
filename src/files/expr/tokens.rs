//! The tokens of SQL expressions: which the parser gets, and how deep they may nest.

use datafusion_common::DataFusionError;
use datafusion_sql::sqlparser::dialect::PostgreSqlDialect;
use datafusion_sql::sqlparser::keywords::Keyword;
use datafusion_sql::sqlparser::tokenizer::{Token, TokenWithSpan, Tokenizer};

/// Maximum number of operators: more could nest deeper than the stack of the planning thread allows.
const MAX_OPERATORS: usize = 5_000;
/// Maximum depth of calls of functions: DataFusion asks each twice for the types of its arguments.
const MAX_CALL_DEPTH: usize = 16;
/// The largest exponent of a number that is a decimal.
const MAX_DECIMAL_EXPONENT: u32 = 60;

/// The tokens of SQL, in which numbers that no decimal holds are casts of text to floats, and signs are apart from the
/// operators before them.
pub(super) fn tokenize(sql: &str) -> datafusion_common::Result<Vec<TokenWithSpan>> {
    let tokens = Tokenizer::new(&PostgreSqlDialect {}, sql).tokenize_with_location();
    let tokens = tokens.map_err(|e| DataFusionError::Plan(e.to_string()))?;
    let mut exact = Vec::with_capacity(tokens.len());
    for token in tokens {
        match &token.token {
            Token::Number(text, _) if is_far(text) => {
                let float = [
                    Token::make_keyword("CAST"),
                    Token::LParen,
                    Token::SingleQuotedString(text.clone()),
                    Token::make_keyword("AS"),
                    Token::make_keyword("DOUBLE"),
                    Token::make_keyword("PRECISION"),
                    Token::RParen,
                ];
                exact.extend(float.map(|part| TokenWithSpan::new(part, token.span)));
            }
            Token::CustomBinaryOperator(text) => match split_signs(text) {
                Some(parts) => {
                    let parts = parts.into_iter();
                    exact.extend(parts.map(|part| TokenWithSpan::new(part, token.span)));
                }
                None => exact.push(token),
            },
            _ => exact.push(token),
        }
    }
    Ok(exact)
}

/// The operator and the signs of its right side that the tokenizer takes for one operator, as in `x>-1`.
fn split_signs(text: &str) -> Option<Vec<Token>> {
    // Two minus signs begin a comment, which would leave the operator without a right side.
    if text.contains("--") {
        return None;
    }
    let name = text.trim_end_matches(['-', '+']);
    let operator = match name {
        "<" => Token::Lt,
        "<=" => Token::LtEq,
        ">" => Token::Gt,
        ">=" => Token::GtEq,
        "=" => Token::Eq,
        "<>" | "!=" => Token::Neq,
        "*" => Token::Mul,
        "/" => Token::Div,
        "%" => Token::Mod,
        "||" => Token::StringConcat,
        _ => return None,
    };
    let sign = |c| if c == '-' { Token::Minus } else { Token::Plus };
    Some(
        std::iter::once(operator)
            .chain(text[name.len()..].chars().map(sign))
            .collect(),
    )
}

/// Whether no decimal holds a number.
fn is_far(number: &str) -> bool {
    let exponent = number.split_once(['e', 'E']).map(|(_, exponent)| exponent);
    let exponent = exponent.and_then(|text| text.parse::<i32>().ok());
    exponent.is_some_and(|exponent| exponent.unsigned_abs() > MAX_DECIMAL_EXPONENT)
}

/// Why an expression could nest too deeply, if it could.
pub(super) fn find_excess(sql: &str) -> Option<String> {
    // The parser reports text that has no tokens.
    let tokens = Tokenizer::new(&PostgreSqlDialect {}, sql).tokenize();
    let tokens = tokens.unwrap_or_default();
    if count_operators(&tokens) > MAX_OPERATORS {
        return Some(format!(
            "more than {MAX_OPERATORS} operators; use IN for many values"
        ));
    }
    let is_deep = call_depth(&tokens) > MAX_CALL_DEPTH;
    is_deep.then(|| format!("calls are nested deeper than {MAX_CALL_DEPTH} levels"))
}

/// Counts the tokens that may each nest an expression in another one. The parser counts the brackets.
fn count_operators(tokens: &[Token]) -> usize {
    let mut follows_value = false;
    let mut count = 0;
    for token in tokens {
        match token {
            Token::Whitespace(_) => {}
            Token::Comma | Token::LParen => follows_value = false,
            Token::Number(..) | Token::SingleQuotedString(_) | Token::RParen => {
                follows_value = true;
            }
            Token::Word(word) => {
                let nests = NESTING_KEYWORDS.contains(&word.keyword);
                follows_value = !nests;
                count += usize::from(nests);
            }
            // A sign belongs to its number.
            Token::Minus | Token::Plus if !follows_value => {}
            _ => {
                follows_value = false;
                count += 1;
            }
        }
    }
    count
}

/// How deep calls of functions are nested in one another.
fn call_depth(tokens: &[Token]) -> usize {
    // For each open bracket whether it is that of a call.
    let mut open = Vec::new();
    let (mut is_name, mut depth, mut deepest) = (false, 0_usize, 0);
    for token in tokens {
        match token {
            Token::Whitespace(_) => continue,
            Token::LParen => {
                open.push(is_name);
                depth += usize::from(is_name);
                deepest = deepest.max(depth);
            }
            Token::RParen => depth -= usize::from(open.pop() == Some(true)),
            _ => {}
        }
        is_name = match token {
            Token::Word(word) => {
                let keyword = &word.keyword;
                !NESTING_KEYWORDS.contains(keyword) && !BEFORE_BRACKETS.contains(keyword)
            }
            _ => false,
        };
    }
    deepest
}

/// Words before brackets that are not those of a call, beside [`NESTING_KEYWORDS`].
const BEFORE_BRACKETS: [Keyword; 7] = [
    Keyword::CASE,
    Keyword::WHEN,
    Keyword::THEN,
    Keyword::ELSE,
    Keyword::CAST,
    Keyword::TRY_CAST,
    Keyword::ANY,
];

/// Operators that are words.
const NESTING_KEYWORDS: [Keyword; 12] = [
    Keyword::AND,
    Keyword::AT,
    Keyword::BETWEEN,
    Keyword::COLLATE,
    Keyword::ILIKE,
    Keyword::IN,
    Keyword::IS,
    Keyword::LIKE,
    Keyword::NOT,
    Keyword::OR,
    Keyword::SIMILAR,
    Keyword::XOR,
];
