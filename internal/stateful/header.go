package stateful

import "github.com/holdfast-go/holdfast/pipeline"

// Header is an option of a call that sends a message: it sets a header, also one that the option
// Header of package endpoint refuses.
type Header struct{ Name, Value string }

// ApplySend sets the header.
func (h Header) ApplySend(out *pipeline.Outgoing) { out.Headers.Set(h.Name, h.Value) }

// ApplyPublish sets the header.
func (h Header) ApplyPublish(out *pipeline.Outgoing) { h.ApplySend(out) }

// ApplyReply sets the header.
func (h Header) ApplyReply(out *pipeline.Outgoing) { h.ApplySend(out) }
