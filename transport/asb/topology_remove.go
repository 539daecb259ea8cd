package asb

import (
	"context"
	"slices"
	"strings"
)

// Remove implements [transport.Remover]: it deletes the queues, after the subscriptions of the
// hierarchy's topics that forward to them. Topics stay. It needs the right to manage the namespace.
func (c *conn) Remove(ctx context.Context, queues ...string) error {
	ctx, cancel := joined(ctx, c.ctx)
	defer cancel()
	paths := make([]string, len(queues))
	for i, q := range queues {
		path, err := c.naming.entity(q)
		if err != nil {
			return err
		}
		paths[i] = path
	}
	if err := c.removeSubscriptions(ctx, paths); err != nil {
		return c.orClosed(wrap(managed(err), "remove subscriptions of queues %q", queues))
	}
	for i, path := range paths {
		_, err := c.admin.DeleteQueue(ctx, path, nil)
		if err := unlessMissing(err); err != nil {
			return c.orClosed(wrap(managed(err), "remove queue %q", queues[i]))
		}
	}
	return nil
}

// removeSubscriptions deletes the subscriptions that forward to one of the queues.
func (c *conn) removeSubscriptions(ctx context.Context, queues []string) error {
	for topics := c.admin.NewListTopicsPager(nil); topics.More(); {
		page, err := topics.NextPage(ctx)
		if err != nil {
			return err
		}
		for _, topic := range page.Topics {
			if !strings.HasPrefix(topic.TopicName, c.naming.prefix) {
				continue
			}
			if err := c.removeFromTopic(ctx, topic.TopicName, queues); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *conn) removeFromTopic(ctx context.Context, topic string, queues []string) error {
	var names []string // deleted after the listing, which would skip some otherwise
	for pages := c.admin.NewListSubscriptionsPager(topic, nil); pages.More(); {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return unlessMissing(err)
		}
		for _, s := range page.Subscriptions {
			to := valueOr(s.ForwardTo, "")
			if slices.ContainsFunc(queues, func(queue string) bool { return forwardsTo(to, queue) }) {
				names = append(names, s.SubscriptionName)
			}
		}
	}
	for _, name := range names {
		_, err := c.admin.DeleteSubscription(ctx, topic, name, nil)
		if err := unlessMissing(err); err != nil {
			return err
		}
	}
	return nil
}
