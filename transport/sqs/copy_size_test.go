package sqs

import (
	"errors"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/transport"
)

// The bound of 64 KiB for headers is the driver's own: it holds for a sent message, and not for a
// copy or a return of a received one.
func TestCopiesHaveNoBoundForHeaders(t *testing.T) {
	f := &fake{}
	c := openFake(t, f, nil)
	op := send("m")
	op.Message.Headers.Set("Foreign", strings.Repeat("x", 100_000))
	if err := c.Check(&op); !errors.Is(err, transport.ErrTooLarge) {
		t.Errorf("a sent message: %v", err)
	}
	op.Message.NativeID = "native-m"
	if _, err := c.Dispatch(t.Context(), []transport.Operation{op}); err != nil || len(f.sends()) != 1 {
		t.Errorf("a copy: %v, %d sent", err, len(f.sends()))
	}
	op.Message.Headers.Set("Foreign", strings.Repeat("x", 2<<20))
	if _, err := c.Dispatch(t.Context(), []transport.Operation{op}); !errors.Is(err, transport.ErrTooLarge) {
		t.Errorf("a copy over the size of a message: %v", err)
	}
}

// A refusal because of the text is one of the content, also in a batch.
func TestRefusedTextIsContent(t *testing.T) {
	for _, code := range []string{"InvalidMessageContents", "InvalidParameterValue"} {
		f := &fake{onSend: func(int, int) (failedEntries, error) {
			return failedEntries{0: types.BatchResultErrorEntry{Code: aws.String(code), Message: aws.String("bad"), SenderFault: true}}, nil
		}}
		c := openFake(t, f, nil)
		if _, err := c.Dispatch(t.Context(), []transport.Operation{send("m")}); !errors.Is(err, transport.ErrContent) {
			t.Errorf("%s of an entry: %v", code, err)
		}
		f.onSend = func(int, int) (failedEntries, error) { return nil, answer(400, code) }
		if _, err := c.Dispatch(t.Context(), []transport.Operation{send("m")}); !errors.Is(err, transport.ErrContent) {
			t.Errorf("%s of the request: %v", code, err)
		}
	}
}

// The headers of a message of 100,000 bytes of text attributes are those of its copy.
func TestLargeAttributesAreHeaders(t *testing.T) {
	m := came("m", 1)
	m.Body = aws.String("{}")
	m.MessageAttributes = map[string]types.MessageAttributeValue{}
	for _, name := range []string{"A", "B"} {
		m.MessageAttributes[name] = types.MessageAttributeValue{DataType: aws.String("String"), StringValue: aws.String(strings.Repeat(name, 50_000))}
	}
	r := decode(&m)
	if r.Headers.Size() < 100_000 || r.Headers.Get(header.MessageID) != "" {
		t.Fatalf("%d bytes of headers", r.Headers.Size())
	}
	f := &fake{}
	c := openFake(t, f, nil)
	if _, err := c.Dispatch(t.Context(), []transport.Operation{{Queue: "error", Message: &r.Message}}); err != nil {
		t.Error(err)
	}
}
