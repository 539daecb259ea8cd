package pipeline

// SendOption sets a field of a message that is sent. Package endpoint has the options.
type SendOption interface{ ApplySend(out *Outgoing) }

// PublishOption sets a field of an event that is published.
type PublishOption interface{ ApplyPublish(out *Outgoing) }

// ReplyOption sets a field of a reply.
type ReplyOption interface{ ApplyReply(out *Outgoing) }
