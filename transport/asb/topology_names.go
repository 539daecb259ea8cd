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
	// deadLetters is what the queue of a queue's dead letters is called by, as NServiceBus does.
	deadLetters = "/$DeadLetterQueue"
)

const entityRule = "names of queues and topics are of letters, digits, dots, hyphens, underscores and slashes, begin and end with a letter or digit, and have at most 260 characters"

var (
	entityForm = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._/-]*[A-Za-z0-9_])?$`)
	childForm  = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9_])?$`)
	notInChild = regexp.MustCompile(`[^A-Za-z0-9._-]`)
)

func validEntity(name string) bool { return len(name) <= maxEntity && entityForm.MatchString(name) }

// naming makes the names of entities of what the endpoint knows.
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

// path is the path of a queue or topic. NServiceBus writes addresses with the hierarchy in front, so a name that begins with it
// is a path already.
func (n naming) path(name string) string {
	if strings.HasPrefix(name, n.prefix) {
		return name
	}
	return n.prefix + name
}

// entity is the path of a queue or topic, checked.
func (n naming) entity(name string) (string, error) {
	path := n.path(name)
	if !validEntity(path) {
		// One that cannot be does not exist either.
		return "", fmt.Errorf("asb: %.300q: %w: %s", path, transport.ErrNoQueue, entityRule)
	}
	return path, nil
}

// queue splits the name of a queue from that of its dead letters.
func (n naming) queue(name string) (path string, dead bool, err error) {
	name, dead = strings.CutSuffix(name, deadLetters)
	path, err = n.entity(name)
	return path, dead, err
}

// subscription is what a queue's subscriptions are called on every topic: as the queue, where that is short enough.
func (n naming) subscription(queue string) string {
	if own := n.subscriptions[queue]; own != "" {
		return own
	}
	return shorten(notInChild.ReplaceAllString(queue, "-"), queue)
}

// shorten cuts a name to what subscriptions may have, with a hash of the whole to keep it apart from others.
func shorten(name, whole string) string {
	if len(name) <= maxChild {
		return name
	}
	hash := hash16(whole)
	return name[:maxChild-1-len(hash)] + "-" + hash
}

// ruleName is what the rule for a type is called, as NServiceBus does.
func ruleName(kind string) string {
	if len(kind) <= maxChild && childForm.MatchString(kind) {
		return kind
	}
	return "Rule-" + hash16(kind)
}

// hash16 is 16 hexadecimal digits.
func hash16(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:8])
}

// topicOf is the topic of a type that is mapped to none: its full name. Nested types of .NET have a plus, which
// no topic may have.
func topicOf(kind string) string { return strings.ReplaceAll(kind, "+", ".") }
