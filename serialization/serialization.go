// Package serialization turns messages into bodies and back.
package serialization

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// Serializer writes and reads bodies of one content type. It is used by many
// goroutines at once.
type Serializer interface {
	// ContentType goes into the content-type header of what Marshal writes.
	ContentType() string
	// Marshal gives the body of a message. The caller owns the result.
	Marshal(v any) ([]byte, error)
	// Unmarshal fills v, a pointer to a registered struct. It does not keep body.
	Unmarshal(body []byte, v any) error
}

// JSON is encoding/json: the default.
var JSON Serializer = jsonSerializer{}

type jsonSerializer struct{}

// byteOrderMark is what some .NET writers put before JSON text.
var byteOrderMark = []byte("\xef\xbb\xbf")

// null would decode into a message with nothing in it, without an error.
var null = []byte("null")

func (jsonSerializer) ContentType() string { return "application/json" }

func (jsonSerializer) Marshal(v any) ([]byte, error) {
	body, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode %T as JSON: %w", v, err)
	}
	return body, nil
}

func (jsonSerializer) Unmarshal(body []byte, v any) error {
	body = bytes.TrimPrefix(body, byteOrderMark)
	if bytes.Equal(bytes.TrimSpace(body), null) {
		return fmt.Errorf("decode JSON into %T: the body is null", v)
	}
	if err := json.Unmarshal(body, v); err != nil {
		return fmt.Errorf("decode JSON into %T: %w", v, err)
	}
	return nil
}
