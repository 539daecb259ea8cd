package asb

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/holdfast-go/holdfast/transport"
)

// Topology chooses the topics of events. An event without base types is published to the topic of
// its full name, as in NServiceBus's topology of a topic per event. One with base types is
// published to a shared topic: there each message has a property for each of its types, and a
// subscription has a rule for each type, so that a subscriber to a base type receives the event
// once.
//
// The tables map single types to other topics, as NServiceBus's do. Publishers and subscribers of a
// type have to agree.
type Topology struct {
	// HierarchyTopic is the topic that events with base types share: "holdfast.hierarchies" unless
	// set.
	HierarchyTopic string
	// NoHierarchies ignores base types, as NServiceBus does: every event is published to the topic
	// of its own name. An endpoint that handles a base type subscribes to the topics of that type
	// and of the events in its configuration that derive from it.
	NoHierarchies bool
	// PublishTo maps types, by their wire names, to topics. SubscribeTo has the same topics unless
	// it has others.
	PublishTo map[string]string
	// SubscribeTo maps types to the topics of their subscriptions.
	SubscribeTo map[string][]string
	// Shared are the mapped topics with several types. As on the HierarchyTopic, messages have a
	// property for each of their types, and subscriptions have rules: NServiceBus's correlation
	// filter mode.
	Shared []string
	// Subscriptions maps queues to the names of their subscriptions: the queue's own unless set.
	// One over 50 characters is cut, and ends in a hash of the whole.
	Subscriptions map[string]string
}

const defaultHierarchyTopic = "holdfast.hierarchies"

// route is a topic, and whether rules distinguish types there.
type route struct {
	topic  string
	shared bool
}

func (y *Topology) check() error {
	topics := append(slices.Concat(slices.Collect(maps.Values(y.SubscribeTo))...), y.Shared...)
	topics = slices.AppendSeq(append(topics, y.hierarchies().topic), maps.Values(y.PublishTo))
	for _, topic := range topics {
		if !validEntity(topic) {
			return fmt.Errorf("asb: topic %.300q: %s", topic, entityRule)
		}
	}
	for queue, name := range y.Subscriptions {
		if len(name) > maxChild || !childForm.MatchString(name) {
			return fmt.Errorf("asb: subscription %.100q of queue %q: it is of letters, digits, dots, hyphens and underscores, at most %d", name, queue, maxChild)
		}
	}
	return nil
}

func (y *Topology) to(topic string) route {
	return route{topic, slices.Contains(y.Shared, topic)}
}

func (y *Topology) hierarchies() route {
	return route{cmp.Or(y.HierarchyTopic, defaultHierarchyTopic), true}
}

// publishTo is where a message of these types, the most concrete first, is published.
func (y *Topology) publishTo(types []string) route {
	switch topic := y.PublishTo[types[0]]; {
	case topic != "":
		return y.to(topic)
	case len(types) > 1 && !y.NoHierarchies:
		return y.hierarchies()
	default:
		return route{topic: topicOf(types[0])}
	}
}

// subscribeTo is where messages of a type, and of those derived from it, come from.
func (y *Topology) subscribeTo(kind string) []route {
	if topics := y.SubscribeTo[kind]; len(topics) > 0 {
		routes := make([]route, len(topics))
		for i, topic := range topics {
			routes[i] = y.to(topic)
		}
		return routes
	}
	if topic := y.PublishTo[kind]; topic != "" {
		return []route{y.to(topic)}
	}
	own := route{topic: topicOf(kind)}
	if y.NoHierarchies {
		return []route{own}
	}
	return []route{own, y.hierarchies()}
}

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
