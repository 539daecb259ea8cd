package endpoint

import (
	"slices"

	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/serialization"
	"github.com/holdfast-go/holdfast/transport"
)

// lends tells whether the user's code gets hold of received messages themselves: behaviors do, and
// serializers, which may keep the body in the values that they make. Only then is a copy
// worth its time; handlers alone see a value that JSON has copied.
func lends(p *pipeline.Pipeline, ss serializers) bool {
	behaviors := len(p.Receive.Names()) + len(p.Logical.Names()) + len(p.Invoke.Names()) +
		len(p.Outgoing.Names()) + len(p.Dispatch.Names()) + len(p.Recover.Names())
	return behaviors > 0 || slices.ContainsFunc(ss, func(s serialization.Serializer) bool { return s != serialization.JSON })
}

// lent is a copy of a message, which may be changed: those to the error queue, to be tried
// later and for the audit are made of the original.
func lent(m *transport.Message) *transport.Message {
	l := *m
	l.Headers = m.Headers.CopyOnWrite()
	l.Body = slices.Clone(m.Body)
	return &l
}
