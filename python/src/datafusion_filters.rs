//! Filters of `DataFusion` as SQL of pds.
//!
//! Only what holds for the same rows in both is written as SQL: comparisons of a column with literals of its type, and
//! what AND, OR and NOT make of them. Comparisons of floats are left out, since `DataFusion` orders NaN by their signs.

use arrow_schema::{DataType, Schema, TimeUnit};
use chrono::{DateTime, Datelike, Duration, NaiveDate, Utc};
use datafusion_common::{Column, ScalarValue};
use datafusion_expr::expr::InList;
use datafusion_expr::{Between, BinaryExpr, Expr, Operator};

/// The years that SQL literals of dates and times have.
const YEARS: std::ops::RangeInclusive<i32> = 1..=9999;

/// The SQL of a filter, if there is one that holds for the same rows.
pub(crate) fn to_sql(filter: &Expr, schema: &Schema) -> Option<String> {
    let sql = |operand: &Expr| to_sql(operand, schema);
    match filter {
        Expr::BinaryExpr(BinaryExpr { left, op, right }) => match op {
            Operator::And => Some(format!("({} AND {})", sql(left)?, sql(right)?)),
            Operator::Or => Some(format!("({} OR {})", sql(left)?, sql(right)?)),
            _ => compare(left, *op, right, schema).or_else(|| {
                // The literal may come first.
                compare(right, op.swap()?, left, schema)
            }),
        },
        Expr::Not(operand) => Some(format!("(NOT {})", sql(operand)?)),
        Expr::IsNull(operand) => Some(format!("({} IS NULL)", quote(&column(operand)?.name))),
        Expr::IsNotNull(operand) => {
            Some(format!("({} IS NOT NULL)", quote(&column(operand)?.name)))
        }
        Expr::Column(flag) => {
            let is_flag = data_type(flag, schema)? == &DataType::Boolean;
            is_flag.then(|| quote(&flag.name))
        }
        Expr::InList(InList {
            expr,
            list,
            negated,
        }) => {
            let (name, values) = operands(expr, list.iter(), schema)?;
            let not = if *negated { "NOT " } else { "" };
            Some(format!("({name} {not}IN ({}))", values.join(", ")))
        }
        Expr::Between(Between {
            expr,
            negated,
            low,
            high,
        }) => {
            let (name, bounds) = operands(expr, [&**low, &**high].into_iter(), schema)?;
            let not = if *negated { "NOT " } else { "" };
            Some(format!("({name} {not}BETWEEN {})", bounds.join(" AND ")))
        }
        _ => None,
    }
}

fn compare(left: &Expr, operator: Operator, right: &Expr, schema: &Schema) -> Option<String> {
    let symbol = match operator {
        Operator::Eq => "=",
        Operator::NotEq => "<>",
        Operator::Lt => "<",
        Operator::LtEq => "<=",
        Operator::Gt => ">",
        Operator::GtEq => ">=",
        _ => return None,
    };
    let (name, values) = operands(left, std::iter::once(right), schema)?;
    Some(format!("({name} {symbol} {})", values.concat()))
}

/// A column and literals of its type.
fn operands<'a>(
    left: &Expr,
    literals: impl Iterator<Item = &'a Expr>,
    schema: &Schema,
) -> Option<(String, Vec<String>)> {
    let column = column(left)?;
    let column_type = value_type(data_type(column, schema)?);
    let values = literals.map(|literal| match literal {
        Expr::Literal(value, _) => {
            let value = match value {
                ScalarValue::Dictionary(_, value) => value,
                value => value,
            };
            let is_same = is_text(column_type) && is_text(&value.data_type())
                || column_type == &value.data_type();
            is_same.then(|| format_literal(value)).flatten()
        }
        _ => None,
    });
    Some((quote(&column.name), values.collect::<Option<_>>()?))
}

fn column(expr: &Expr) -> Option<&Column> {
    match expr {
        Expr::Column(column) => Some(column),
        _ => None,
    }
}

fn data_type<'a>(column: &Column, schema: &'a Schema) -> Option<&'a DataType> {
    schema
        .field_with_name(&column.name)
        .ok()
        .map(|f| f.data_type())
}

/// The type of the values of a dictionary, else the type itself.
fn value_type(data_type: &DataType) -> &DataType {
    match data_type {
        DataType::Dictionary(_, values) => values,
        other => other,
    }
}

fn is_text(data_type: &DataType) -> bool {
    matches!(
        data_type,
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View
    )
}

fn quote(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// The SQL of a literal that is not null, has a value that text holds exactly, and is not a float.
fn format_literal(value: &ScalarValue) -> Option<String> {
    match value {
        ScalarValue::Boolean(Some(flag)) => Some(flag.to_string()),
        ScalarValue::Int8(Some(number)) => Some(number.to_string()),
        ScalarValue::Int16(Some(number)) => Some(number.to_string()),
        ScalarValue::Int32(Some(number)) => Some(number.to_string()),
        ScalarValue::Int64(Some(number)) => Some(number.to_string()),
        ScalarValue::UInt8(Some(number)) => Some(number.to_string()),
        ScalarValue::UInt16(Some(number)) => Some(number.to_string()),
        ScalarValue::UInt32(Some(number)) => Some(number.to_string()),
        ScalarValue::UInt64(Some(number)) => Some(number.to_string()),
        ScalarValue::Decimal128(Some(number), _, scale) => format_decimal(*number, *scale),
        ScalarValue::Utf8(Some(text))
        | ScalarValue::LargeUtf8(Some(text))
        | ScalarValue::Utf8View(Some(text)) => Some(format!("'{}'", text.replace('\'', "''"))),
        ScalarValue::Date32(Some(days)) => {
            let epoch = NaiveDate::from_ymd_opt(1970, 1, 1)?;
            let date = epoch.checked_add_signed(Duration::days((*days).into()))?;
            YEARS
                .contains(&date.year())
                .then(|| format!("DATE '{date}'"))
        }
        ScalarValue::TimestampSecond(Some(time), _) => format_time(*time, TimeUnit::Second),
        ScalarValue::TimestampMillisecond(Some(time), _) => {
            format_time(*time, TimeUnit::Millisecond)
        }
        ScalarValue::TimestampMicrosecond(Some(time), _) => {
            format_time(*time, TimeUnit::Microsecond)
        }
        ScalarValue::TimestampNanosecond(Some(time), _) => format_time(*time, TimeUnit::Nanosecond),
        _ => None,
    }
}

fn format_decimal(number: i128, scale: i8) -> Option<String> {
    let scale = usize::try_from(scale).ok()?;
    let digits = format!("{:0>width$}", number.unsigned_abs(), width = scale + 1);
    let (whole, fraction) = digits.split_at(digits.len() - scale);
    let sign = if number < 0 { "-" } else { "" };
    let point = if scale > 0 { "." } else { "" };
    Some(format!("{sign}{whole}{point}{fraction}"))
}

/// A timestamp in UTC without a zone: beside a column with a zone it is read as UTC.
fn format_time(time: i64, unit: TimeUnit) -> Option<String> {
    let time: DateTime<Utc> = match unit {
        TimeUnit::Second => DateTime::from_timestamp(time, 0)?,
        TimeUnit::Millisecond => DateTime::from_timestamp_millis(time)?,
        TimeUnit::Microsecond => DateTime::from_timestamp_micros(time)?,
        TimeUnit::Nanosecond => DateTime::from_timestamp_nanos(time),
    };
    let is_writable = YEARS.contains(&time.year());
    is_writable.then(|| format!("TIMESTAMP '{}'", time.format("%Y-%m-%d %H:%M:%S%.9f")))
}
