// Package nsbxml reads and writes the bodies of NServiceBus's XmlSerializer, which was its default
// format for years.
//
// The root element has the name of the message type without its namespace, and each field is an
// element of its own. A field's name is its name in Go, or the name in its xml tag; the tag "-"
// leaves the field out, and in the tag "Items>Item" the second name is that of a list's elements.
// The fields of an embedded struct stand beside the others, as those of a base class do. Elements
// without a field, attributes and comments are ignored.
//
//	.NET                        Go
//	string, char                string and every type of that kind, json.Number among them
//	bool                        bool
//	byte to ulong               uint8 to uint64, int8 to int64, int, uint
//	float, double               float32, float64
//	decimal                     json.Number, or a type with MarshalText and UnmarshalText
//	Guid, enum                  a type with MarshalText and UnmarshalText; enums are written by name
//	DateTime, DateTimeOffset    time.Time, to 100 ns; a time without a zone is read as UTC
//	TimeSpan                    time.Duration or serialization.TimeSpan, as PT1M30.5S, to 100 ns
//	byte[]                      []byte, as Base64
//	List<T>, T[]                slice
//	Dictionary<K, V>            map, with scalar keys
//	class                       struct, or a pointer to one
//	Nullable<T>, null           pointer; nil and absent are xsi:nil
//
// Not supported, and refused with an error: fields of interface, func, chan and complex types,
// arrays other than text, lists of lists and of maps, texts with characters that XML 1.0 does not
// have, document types, entities of their own, encodings other than UTF-8, several messages in one
// body, and bodies over the limits of [MaxDepth] and [MaxElements].
package nsbxml

import (
	"fmt"
	"reflect"

	"github.com/holdfast-go/holdfast/serialization"
)

// Limits of a body. NServiceBus has none.
const (
	MaxDepth    = 64        // elements in one another
	MaxElements = 1_000_000 // elements in all
)

// XML reads and writes bodies of NServiceBus's XmlSerializer. It is safe for concurrent use.
var XML serialization.NamedSerializer = xmlSerializer{}

type xmlSerializer struct{}

// ContentType returns text/xml.
func (xmlSerializer) ContentType() string { return "text/xml" }

// Marshal returns the body of a message that is named as its Go type, without a namespace.
func (s xmlSerializer) Marshal(v any) ([]byte, error) {
	t := reflect.TypeOf(v)
	if t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t == nil {
		return nil, fmt.Errorf("encode %T as XML: it is no struct", v)
	}
	return s.MarshalNamed([]string{t.Name()}, v)
}

// MarshalNamed returns the body of a message. The first of names is its type, the others are its
// base types, nearest first.
func (xmlSerializer) MarshalNamed(names []string, v any) ([]byte, error) {
	body, err := encode(names, v)
	if err != nil {
		return nil, fmt.Errorf("encode %T as XML: %w", v, err)
	}
	return body, nil
}

// Unmarshal decodes body into v, a pointer to a struct.
func (xmlSerializer) Unmarshal(body []byte, v any) error {
	if err := decode(body, v); err != nil {
		return fmt.Errorf("decode XML into %T: %w", v, err)
	}
	return nil
}
