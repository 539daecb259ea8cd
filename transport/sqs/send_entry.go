package sqs

import (
	"maps"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
)

// payload is a message in the form of SQS and SNS.
type payload struct {
	body       string
	attributes []attribute
	typed      map[string]types.MessageAttributeValue // attributes that are not of type String; for SQS only
	group      string                                 // message group id; "" is none
}

// attribute is a message attribute of type String.
type attribute struct{ name, value string }

func (a *attribute) size() int { return len(a.name) + len(textType) + len(a.value) }

// size is what counts against the limit: bytes, of the attributes' names, types and values too.
func (p *payload) size() int {
	n := len(p.body)
	for _, a := range p.attributes {
		n += a.size()
	}
	for name, a := range p.typed {
		n += len(name) + len(value(a.DataType)) + len(value(a.StringValue)) + len(a.BinaryValue)
	}
	return n
}

// textType is the data type of attributes.
const textType = "String"

// isTyped reports whether an attribute is of another type.
func isTyped(a types.MessageAttributeValue) bool {
	return a.StringValue == nil || a.DataType != nil && *a.DataType != textType
}

// take adds the attributes of a received message as they are.
func (p *payload) take(attributes map[string]types.MessageAttributeValue) {
	for name, a := range attributes {
		if !isTyped(a) {
			p.attributes = append(p.attributes, attribute{name, *a.StringValue})
			continue
		}
		if p.typed == nil {
			p.typed = make(map[string]types.MessageAttributeValue)
		}
		p.typed[name] = a
	}
}

// sent are the attributes as SQS takes them; nil when there are none.
func (p *payload) sent() map[string]types.MessageAttributeValue {
	if len(p.attributes)+len(p.typed) == 0 {
		return nil
	}
	all := make(map[string]types.MessageAttributeValue, len(p.attributes)+len(p.typed))
	for _, a := range p.attributes {
		all[a.name] = types.MessageAttributeValue{DataType: aws.String(textType), StringValue: &a.value}
	}
	maps.Copy(all, p.typed)
	return all
}

// entry is a message on its way to one queue or topic.
type entry struct {
	payload
	delay int32  // seconds that SQS keeps it back
	dedup string // deduplication id, for FIFO queues
}
