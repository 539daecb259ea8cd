// Package serialization encodes messages as bodies and decodes them.
package serialization

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"sync"

	"github.com/holdfast-go/holdfast/internal/jsonloss"
	"github.com/holdfast-go/holdfast/internal/strictjson"
)

// Serializer encodes and decodes bodies of one content type. It must be safe for concurrent use.
type Serializer interface {
	// ContentType returns the content type of the bodies that Marshal returns.
	ContentType() string
	// Marshal returns the body of a message. The caller owns the result.
	Marshal(v any) ([]byte, error)
	// Unmarshal decodes body into v, a pointer to a registered struct. It does not keep body.
	Unmarshal(body []byte, v any) error
}

// NamedSerializer is a [Serializer] whose bodies name the message type. An endpoint calls
// MarshalNamed in place of Marshal.
type NamedSerializer interface {
	Serializer
	// MarshalNamed returns the body of a message. The first of names is its full type name, as in
	// headers; the others are its base types, nearest first. It keeps neither names nor v.
	MarshalNamed(names []string, v any) ([]byte, error)
}

// JSON uses encoding/json, and is the default. A body that is not valid UTF-8 is an error, because
// encoding/json would change its text; a byte order mark is allowed.
var JSON Serializer = jsonSerializer{}

type jsonSerializer struct{}

// byteOrderMark precedes the JSON text of some .NET writers.
var byteOrderMark = []byte("\xef\xbb\xbf")

// null would decode into an empty message, without an error.
var null = []byte("null")

func (jsonSerializer) ContentType() string { return "application/json" }

func (jsonSerializer) Marshal(v any) ([]byte, error) {
	body, err := json.Marshal(addressed(v))
	if err == nil {
		err = strictjson.Valid(body) // of a json.RawMessage, which Marshal does not look into
	}
	if err != nil {
		return nil, fmt.Errorf("encode %T as JSON: %w", v, err)
	}
	return body, nil
}

// addressed returns v, or a pointer to a copy if values of its type are encoded by methods of their
// pointers: such as one with a field of type big.Int. encoding/json calls these methods of
// addressed values alone.
func addressed(v any) any {
	t := reflect.TypeOf(v)
	if t == nil || t.Kind() != reflect.Struct {
		return v
	}
	needs, known := needsAddress.Load(t)
	if !known {
		needs = jsonloss.NeedsAddress(t)
		needsAddress.Store(t, needs)
	}
	if needs == false {
		return v
	}
	p := reflect.New(t)
	p.Elem().Set(reflect.ValueOf(v))
	return p.Interface()
}

// needsAddress has the answers of [jsonloss.NeedsAddress] by type.
var needsAddress sync.Map

func (jsonSerializer) Unmarshal(body []byte, v any) error {
	if err := strictjson.Valid(body); err != nil {
		return fmt.Errorf("decode JSON into %T: %w", v, err)
	}
	body = bytes.TrimPrefix(body, byteOrderMark)
	if bytes.Equal(bytes.TrimSpace(body), null) {
		return fmt.Errorf("decode JSON into %T: the body is null", v)
	}
	if err := json.Unmarshal(body, v); err != nil {
		return fmt.Errorf("decode JSON into %T: %w", v, err)
	}
	return nil
}
