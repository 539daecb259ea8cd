package sqs

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/holdfast-go/holdfast/header"
)

const (
	// packedAttribute has the body of a packed message, compressed by gzip.
	packedAttribute = ours + "Body.Gzip"
	binaryType      = "Binary"
	asPacked        = "gzip"
	packedBody      = "The body is in the message attribute " + packedAttribute + ", compressed by gzip."
)

// packed is the smallest form. It is for copies of received messages that would be too large
// otherwise, because of added headers or the encoding of bytes as text.
func packed(headers header.Map, body []byte) payload {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = w.Write(body) // a Buffer never fails
	_ = w.Close()
	return payload{
		body: packedBody,
		attributes: []attribute{
			{headersAttribute, string(appendHeaders(nil, headers))},
			{bodyAttribute, asPacked},
		},
		typed: map[string]types.MessageAttributeValue{
			packedAttribute: {DataType: aws.String(binaryType), BinaryValue: b.Bytes()},
		},
	}
}

// unpack reads the body of a packed message, which is limited to the size of an SQS message.
func unpack(m *types.Message) ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(m.MessageAttributes[packedAttribute].BinaryValue))
	if err != nil {
		return nil, fmt.Errorf("sqs: attribute %s: %w", packedAttribute, err)
	}
	body, err := io.ReadAll(io.LimitReader(r, maxMessage+1))
	if err == nil && len(body) > maxMessage {
		err = fmt.Errorf("over %d bytes", maxMessage)
	}
	if err != nil {
		return nil, fmt.Errorf("sqs: attribute %s: %w", packedAttribute, err)
	}
	return body, nil
}
