//! The dialect of SQL expressions: that of `PostgreSQL`, in which `a IS DISTINCT FROM b AND c` is two conditions, and
//! `-a ^ 2` the power of `-a`.
//!
//! The parser takes all that follows `IS DISTINCT FROM` for its right side: `b AND c`, up to the next bracket. And it
//! negates a power.

use std::any::TypeId;

use datafusion_sql::sqlparser::ast::{Expr, UnaryOperator};
use datafusion_sql::sqlparser::dialect::{Dialect, PostgreSqlDialect, Precedence};
use datafusion_sql::sqlparser::keywords::Keyword;
use datafusion_sql::sqlparser::parser::{Parser, ParserError};
use datafusion_sql::sqlparser::tokenizer::Token;

/// The dialect.
#[derive(Debug, Default)]
pub(super) struct FilterDialect(PostgreSqlDialect);

/// Asks the dialect of `PostgreSQL` what it supports.
macro_rules! as_postgres {
    ($($method:ident),* $(,)?) => {
        $(fn $method(&self) -> bool {
            self.0.$method()
        })*
    };
}

impl FilterDialect {
    /// Parses what stands to the right of `IS DISTINCT FROM`.
    ///
    /// Another IS after it is refused, as `PostgreSQL` does: DuckDB took it for a part of the right side before version 2,
    /// and since then for a test of the comparison.
    fn parse_right_side(&self, parser: &mut Parser<'_>) -> Result<Expr, ParserError> {
        let right = parser.parse_subexpr(self.prec_value(Precedence::Is))?;
        let tests = [Keyword::IS, Keyword::NOTNULL];
        if tests.iter().any(|word| parser.peek_keyword(*word)) {
            let message = "IS after IS [NOT] DISTINCT FROM has two meanings: put one of the two comparisons in brackets";
            return Err(ParserError::ParserError(message.to_owned()));
        }
        Ok(right)
    }
}

impl Dialect for FilterDialect {
    /// The parser asks for it where it has rules for `PostgreSQL`.
    fn dialect(&self) -> TypeId {
        self.0.dialect()
    }

    fn parse_prefix(&self, parser: &mut Parser<'_>) -> Option<Result<Expr, ParserError>> {
        let op = if parser.consume_token(&Token::Minus) {
            UnaryOperator::Minus
        } else if parser.consume_token(&Token::Plus) {
            UnaryOperator::Plus
        } else {
            return None;
        };
        // A sign is above all operators but casts.
        let operand = parser.parse_subexpr(self.prec_value(Precedence::AtTz));
        Some(operand.map(|operand| Expr::UnaryOp {
            op,
            expr: Box::new(operand),
        }))
    }

    fn parse_infix(
        &self,
        parser: &mut Parser<'_>,
        expr: &Expr,
        _precedence: u8,
    ) -> Option<Result<Expr, ParserError>> {
        use Keyword::{DISTINCT, FROM, IS, NOT};
        let compare = if parser.parse_keywords(&[IS, DISTINCT, FROM]) {
            Expr::IsDistinctFrom
        } else if parser.parse_keywords(&[IS, NOT, DISTINCT, FROM]) {
            Expr::IsNotDistinctFrom
        } else {
            return None;
        };
        Some(
            self.parse_right_side(parser)
                .map(|right| compare(Box::new(expr.clone()), Box::new(right))),
        )
    }

    fn get_next_precedence(&self, parser: &Parser<'_>) -> Option<Result<u8, ParserError>> {
        self.0.get_next_precedence(parser)
    }

    fn prec_value(&self, precedence: Precedence) -> u8 {
        self.0.prec_value(precedence)
    }

    fn identifier_quote_style(&self, identifier: &str) -> Option<char> {
        self.0.identifier_quote_style(identifier)
    }

    fn is_delimited_identifier_start(&self, ch: char) -> bool {
        self.0.is_delimited_identifier_start(ch)
    }

    fn is_identifier_start(&self, ch: char) -> bool {
        self.0.is_identifier_start(ch)
    }

    fn is_identifier_part(&self, ch: char) -> bool {
        self.0.is_identifier_part(ch)
    }

    fn is_custom_operator_part(&self, ch: char) -> bool {
        self.0.is_custom_operator_part(ch)
    }

    fn is_reserved_for_identifier(&self, keyword: Keyword) -> bool {
        self.0.is_reserved_for_identifier(keyword)
    }

    as_postgres!(
        allow_extract_custom,
        allow_extract_single_quotes,
        supports_array_typedef_with_brackets,
        supports_bitwise_shift_operators,
        supports_comma_separated_trim,
        supports_empty_projections,
        supports_factorial_operator,
        supports_filter_during_aggregation,
        supports_geometric_types,
        supports_interval_options,
        supports_named_fn_args_with_colon_operator,
        supports_named_fn_args_with_expr_name,
        supports_nested_comments,
        supports_notnull_operator,
        supports_numeric_literal_underscores,
        supports_string_escape_constant,
        supports_unicode_string_literal,
        supports_xml_expressions,
    );
}
