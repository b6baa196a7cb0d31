//! Passes the values of a pickle to serde.
//!
//! A value may contain itself, so the depth is limited, and values that nobody asks for are skipped.
//! This module must never copy a text that the receiver only compares.

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::forward_to_deserialize_any;

use super::{Error, Value};

/// The deepest value within values; snapshots have eight levels.
const DEEPEST: u32 = 64;

/// One value of the table.
#[derive(Clone, Copy)]
pub(super) struct Reader<'t, 'a> {
    values: &'t [Value<'a>],
    number: u32,
    depth: u32,
}

impl<'t, 'a> Reader<'t, 'a> {
    pub(super) fn new(values: &'t [Value<'a>], number: u32) -> Self {
        Self {
            values,
            number,
            depth: 0,
        }
    }

    fn inner(self, number: u32) -> Self {
        Self {
            number,
            depth: self.depth + 1,
            ..self
        }
    }

    fn value(self) -> Result<&'t Value<'a>, Error> {
        if self.depth > DEEPEST {
            return Err(Error(format!(
                "values are nested more than {DEEPEST} deep, or contain themselves"
            )));
        }
        // The machine refers only to values that it has made.
        let value = self.values.get(self.number as usize);
        value.ok_or_else(|| Error("a value is missing".to_owned()))
    }
}

impl<'de> Deserializer<'de> for Reader<'_, '_> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.value()? {
            Value::None => visitor.visit_unit(),
            Value::Bool(value) => visitor.visit_bool(*value),
            Value::Int(value) => match u64::try_from(*value) {
                Ok(value) => visitor.visit_u64(value),
                Err(_) => visitor.visit_i64(*value),
            },
            Value::Large(value) => visitor.visit_u64(*value),
            Value::Float(value) => visitor.visit_f64(*value),
            Value::Text(text) => visitor.visit_str(text),
            Value::Bytes(bytes) => visitor.visit_bytes(bytes),
            Value::List(items) => visitor.visit_seq(Items {
                of: self,
                items: items.iter(),
            }),
            Value::Dict(pairs) => visitor.visit_map(Pairs {
                of: self,
                pairs: pairs.iter(),
                value: None,
            }),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.value()? {
            Value::None => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_unit()
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct seq tuple tuple_struct map struct enum identifier
    }
}

struct Items<'t, 'a> {
    of: Reader<'t, 'a>,
    items: std::slice::Iter<'t, u32>,
}

impl<'de> SeqAccess<'de> for Items<'_, '_> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Error> {
        let next = self.items.next();
        next.map(|&number| seed.deserialize(self.of.inner(number)))
            .transpose()
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.items.len())
    }
}

struct Pairs<'t, 'a> {
    of: Reader<'t, 'a>,
    pairs: std::slice::Iter<'t, (u32, u32)>,
    value: Option<u32>,
}

impl<'de> MapAccess<'de> for Pairs<'_, '_> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Error> {
        let Some(&(key, value)) = self.pairs.next() else {
            return Ok(None);
        };
        self.value = Some(value);
        seed.deserialize(self.of.inner(key)).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        let value = self.value.take();
        let value =
            value.ok_or_else(|| Error("a value was asked for before its key".to_owned()))?;
        seed.deserialize(self.of.inner(value))
    }
}
