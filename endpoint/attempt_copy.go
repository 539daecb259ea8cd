package endpoint

import (
	"slices"

	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/serialization"
	"github.com/holdfast-go/holdfast/transport"
)

// needsCopies reports whether the user's code gets references to received messages. Behaviors do, and serializers,
// which may keep the body in the values that they return. Handlers alone get a value that JSON has copied.
func needsCopies(p *pipeline.Pipeline, ss serializers) bool {
	behaviors := len(p.Receive.Names()) + len(p.Logical.Names()) + len(p.Invoke.Names()) +
		len(p.Outgoing.Names()) + len(p.Dispatch.Names()) + len(p.Recover.Names())
	keeps := func(s serialization.Serializer) bool { return s != serialization.JSON }
	return behaviors > 0 || slices.ContainsFunc(ss, keeps)
}

// sharedCopy returns a copy of a message for the user's code, which may change it. Copies to the error
// queue, to the audit queue and for later are made of the original. The headers are copied on write.
func sharedCopy(m *transport.Message) *transport.Message {
	c := *m
	c.Headers = m.Headers.CopyOnWrite()
	c.Body = slices.Clone(m.Body)
	return &c
}
