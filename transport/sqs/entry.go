package sqs

// payload is a message as SQS and SNS take it.
type payload struct {
	body       string
	attributes []attribute
	group      string // message group id; "" is none
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
	return n
}

// textType is the data type of attributes.
const textType = "String"

// entry is a message on its way to one queue or topic.
type entry struct {
	payload
	delay int32  // seconds that SQS keeps it back
	dedup string // deduplication id, for FIFO queues
}
