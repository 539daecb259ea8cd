package asb

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"strings"

	"github.com/holdfast-go/holdfast/transport"
)

const (
	maxEntity = 260 // of a queue or topic, its hierarchy included
	maxChild  = 50  // of a subscription or rule
	// deadLetters ends the name of a queue's dead-letter queue, as in NServiceBus.
	deadLetters = "/$DeadLetterQueue"
)

const entityRule = "names of queues and topics are of letters, digits, dots, hyphens, underscores and slashes, begin and end with a letter or digit, and have at most 260 characters"

var (
	entityForm = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._/-]*[A-Za-z0-9_])?$`)
	childForm  = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9_])?$`)
	notInChild = regexp.MustCompile(`[^A-Za-z0-9._-]`)
)

func validEntity(name string) bool { return len(name) <= maxEntity && entityForm.MatchString(name) }

// naming derives the names of entities from those of queues, topics and types.
type naming struct {
	prefix        string // "" or "hierarchy/"
	subscriptions map[string]string
}

func newNaming(t *Transport) naming {
	n := naming{subscriptions: t.Topology.Subscriptions}
	if t.Hierarchy != "" {
		n.prefix = t.Hierarchy + "/"
	}
	return n
}

// path returns the path of a queue or topic. NServiceBus writes addresses with the hierarchy in
// front, so a name that begins with it is a path already.
func (n naming) path(name string) string {
	if strings.HasPrefix(name, n.prefix) {
		return name
	}
	return n.prefix + name
}

// entity returns the path of a queue or topic. A name that is not valid is a
// [*transport.NameError].
func (n naming) entity(name string) (string, error) {
	path := n.path(name)
	if !validEntity(path) {
		return "", &transport.NameError{Err: fmt.Errorf("asb: queue or topic %.300q: %s", path, entityRule)}
	}
	return path, nil
}

// queue returns the path of a queue, and whether the name is that of its dead-letter queue.
func (n naming) queue(name string) (path string, dead bool, err error) {
	name, dead = strings.CutSuffix(name, deadLetters)
	path, err = n.entity(name)
	return path, dead, err
}

// subscription returns the name of a queue's subscriptions on every topic: the queue's name if that
// is short enough, else with a hash of it at the end.
func (n naming) subscription(queue string) string {
	if own := n.subscriptions[queue]; own != "" {
		return own
	}
	name := notInChild.ReplaceAllString(queue, "-")
	if len(name) <= maxChild {
		return name
	}
	hash := hash16(queue)
	return name[:maxChild-1-len(hash)] + "-" + hash
}

// ruleName returns the name of the rule for a type, as in NServiceBus.
func ruleName(kind string) string {
	if len(kind) <= maxChild && childForm.MatchString(kind) {
		return kind
	}
	return "Rule-" + hash16(kind)
}

// hash16 returns 16 hexadecimal digits.
func hash16(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:8])
}

// topicOf returns the topic of a type that is not mapped: its full name, in which the plus of
// .NET's nested types, which no topic may have, becomes a dot.
func topicOf(kind string) string { return strings.ReplaceAll(kind, "+", ".") }
