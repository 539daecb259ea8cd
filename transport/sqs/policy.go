package sqs

import (
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"
)

const (
	// maxPolicy and maxStatements are SQS's limits for the policy of a queue.
	maxPolicy     = 8192
	maxStatements = 20
	// policyID is the id of Holdfast's statement.
	policyID = "HoldfastTopics"
)

// policy is the access policy of a queue. Statements of others are kept unchanged.
type policy struct {
	rest       map[string]json.RawMessage
	statements []json.RawMessage
}

// parsePolicy reads a policy; "" is an empty one.
func parsePolicy(text string) (*policy, error) {
	p := &policy{rest: map[string]json.RawMessage{"Version": json.RawMessage(`"2012-10-17"`)}}
	if text == "" {
		return p, nil
	}
	if err := json.Unmarshal([]byte(text), &p.rest); err != nil {
		return nil, fmt.Errorf("the policy is not JSON: %w", err)
	}
	statements := p.rest["Statement"]
	delete(p.rest, "Statement")
	if len(statements) > 0 && statements[0] == '{' { // a single one
		p.statements = []json.RawMessage{statements}
		return p, nil
	}
	if len(statements) > 0 {
		if err := json.Unmarshal(statements, &p.statements); err != nil {
			return nil, fmt.Errorf("the policy's statements cannot be read: %w", err)
		}
	}
	return p, nil
}

// text returns the policy as JSON.
func (p *policy) text() (string, error) {
	whole := make(map[string]any, len(p.rest)+1)
	for name, value := range p.rest {
		whole[name] = value
	}
	whole["Statement"] = p.statements
	text, err := json.Marshal(whole)
	switch {
	case err != nil:
		return "", err
	case len(text) > maxPolicy:
		return "", fmt.Errorf("the policy would have %d bytes, and SQS takes %d: let in all topics of a prefix (Transport.WidePolicy), "+
			"or subscribe to fewer types", len(text), maxPolicy)
	case len(p.statements) > maxStatements:
		return "", fmt.Errorf("the policy would have %d statements, and SQS takes %d: remove some of the others", len(p.statements), maxStatements)
	}
	return string(text), nil
}

// statement has the parts of a statement that matter here.
type statement struct {
	ID        string          `json:"Sid,omitempty"`
	Effect    string          `json:"Effect"`
	Principal json.RawMessage `json:"Principal,omitempty"`
	Action    oneOrMore       `json:"Action,omitempty"`
	Resource  oneOrMore       `json:"Resource,omitempty"`
	Condition conditions      `json:"Condition,omitempty"`

	NotPrincipal json.RawMessage `json:"NotPrincipal,omitempty"`
	NotAction    json.RawMessage `json:"NotAction,omitempty"`
	NotResource  json.RawMessage `json:"NotResource,omitempty"`
}

// conditions are by operator and key.
type conditions map[string]map[string]oneOrMore

// oneOrMore is a string or an array of them.
type oneOrMore []string

// UnmarshalJSON reads either.
func (o *oneOrMore) UnmarshalJSON(b []byte) error {
	var one string
	if json.Unmarshal(b, &one) == nil {
		*o = oneOrMore{one}
		return nil
	}
	return json.Unmarshal(b, (*[]string)(o))
}

// allows reports whether the policy allows a topic, or every topic of a pattern, to send to a
// queue. Statements that it does not understand allow nothing.
func (p *policy) allows(queueARN, topicARN string) bool {
	return slices.ContainsFunc(p.statements, func(raw json.RawMessage) bool {
		var s statement
		return json.Unmarshal(raw, &s) == nil && s.allows(queueARN, topicARN)
	})
}

func (s *statement) allows(queueARN, topicARN string) bool {
	if s.Effect != "Allow" || s.NotPrincipal != nil || s.NotAction != nil || s.NotResource != nil || !s.isForTopics() {
		return false
	}
	sends := slices.ContainsFunc(s.Action, func(a string) bool { return matches(strings.ToLower(a), "sqs:sendmessage") })
	here := slices.ContainsFunc(s.Resource, func(r string) bool { return matches(r, queueARN) })
	return sends && here && s.Condition.holdFor(topicARN)
}

// isForTopics reports whether the principal of the statement is SNS, or any.
func (s *statement) isForTopics() bool {
	var who struct{ AWS, Service oneOrMore }
	if json.Unmarshal(s.Principal, &who) != nil {
		return string(s.Principal) == `"*"`
	}
	return slices.Contains(who.AWS, "*") || slices.Contains(who.Service, "sns.amazonaws.com")
}

// holdFor reports whether the conditions allow messages of a topic: they must be about the source
// only.
func (c conditions) holdFor(topicARN string) bool {
	for operator, keys := range c {
		for key, patterns := range keys {
			if !strings.EqualFold(key, "aws:SourceArn") || !patternsMatch(operator, patterns, topicARN) {
				return false
			}
		}
	}
	return true
}

func patternsMatch(operator string, patterns []string, arn string) bool {
	switch operator {
	case "ArnLike", "ArnEquals", "StringLike":
		return slices.ContainsFunc(patterns, func(p string) bool { return matches(p, arn) })
	case "StringEquals":
		return slices.Contains(patterns, arn)
	}
	return false
}

// literal escapes a pattern for path.Match, so that only * and ? are special, and "/" is an
// ordinary character.
var literal = strings.NewReplacer(`\`, `\\`, `[`, `\[`, `/`, "\x00")

// matches reports whether a pattern with * and ? matches a name or a narrower pattern, by AWS's
// rules.
func matches(pattern, name string) bool {
	if !strings.ContainsAny(pattern, "*?") {
		return pattern == name
	}
	ok, err := path.Match(literal.Replace(pattern), strings.ReplaceAll(name, "/", "\x00"))
	return ok && err == nil
}

// sourceKey is the condition key of the sending topic.
const sourceKey = "aws:SourceArn"

// allow lets topics, or patterns of them, send to a queue, in addition to the present ones.
func (p *policy) allow(queueARN string, topicARNs ...string) error {
	own, end, sources := len(p.statements), len(p.statements), slices.Clone(topicARNs)
	for i, raw := range p.statements {
		var s statement
		if json.Unmarshal(raw, &s) == nil && s.ID == policyID && slices.Contains(s.Resource, queueARN) {
			own, end, sources = i, i+1, append(sources, s.Condition["ArnLike"][sourceKey]...)
			break
		}
	}
	raw, err := json.Marshal(statement{
		ID: policyID, Effect: "Allow", Principal: json.RawMessage(`{"Service":"sns.amazonaws.com"}`),
		Action: oneOrMore{"sqs:SendMessage"}, Resource: oneOrMore{queueARN},
		Condition: conditions{"ArnLike": {sourceKey: minimal(sources)}},
	})
	if err != nil {
		return err
	}
	p.statements = slices.Replace(p.statements, own, end, raw)
	return nil
}

// minimal returns the patterns that no other one matches.
func minimal(patterns []string) []string {
	patterns = slices.Compact(slices.Sorted(slices.Values(patterns)))
	return slices.DeleteFunc(slices.Clone(patterns), func(p string) bool {
		return slices.ContainsFunc(patterns, func(wider string) bool { return wider != p && matches(wider, p) })
	})
}
