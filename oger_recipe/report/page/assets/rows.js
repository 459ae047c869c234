"use strict";
/* Rows of samples: what kind each is, how it is drawn, which pass a filter, and in which order they come. */
(() => {
  const { el } = Page;

  const isUngraded = (row) => row.graded === false || (row.reason ?? "").startsWith("not graded: ");

  /* Kinds of rows. Of those with the same aspect a row needs one that was asked for, and one of each aspect. */
  const KINDS = {
    right: { aspect: "verdict", meaning: "the answer is right", test: (row) => !isUngraded(row) && row.score > 0 },
    wrong: { aspect: "verdict", meaning: "the answer is wrong", test: (row) => !isUngraded(row) && !(row.score > 0) },
    failed: {
      aspect: "verdict",
      meaning: "the verifier or a judge failed on it; a row without a verdict counts as wrong",
      test: (row) => isUngraded(row) || row.errors !== undefined,
    },
    replaced: {
      aspect: "role",
      meaning: "a rollout that made room for a teacher",
      test: (row) => row.replaced === true,
    },
    teacher: {
      aspect: "role",
      meaning: "a teacher's trajectory that entered, or a rollout that begins with one",
      test: (row) => row.off_policy === true,
    },
    truncated: { aspect: "length", meaning: "cut off at the length limit", test: (row) => row.truncated === true },
  };

  const kindsOf = (row) => Object.keys(KINDS).filter((kind) => KINDS[kind].test(row));

  /* Return the test of a filter, given the kinds that were asked for; without any, every row passes. */
  function passes(kinds) {
    const asked = kinds.filter((kind) => kind in KINDS).map((kind) => KINDS[kind]);
    const meets = (row, aspect) => asked.some((kind) => kind.aspect === aspect && kind.test(row));
    return (row) => asked.every(({ aspect }) => meets(row, aspect));
  }

  /* Orders of single rows: by the value that a row has, which may be none; such rows come last. */
  const ORDERS = {
    worst: { label: "lowest total reward", what: "total reward", value: (row) => row.total_reward, sign: 1 },
    best: { label: "highest total reward", what: "total reward", value: (row) => row.total_reward, sign: -1 },
    advantage: { label: "highest advantage", what: "advantage", value: (row) => row.advantage, sign: -1 },
    similar: { label: "most similar to teachers", what: "similarity", value: (row) => row.similarity, sign: -1 },
    longest: { label: "longest", what: "characters", value: (row) => lengthOf(row), sign: -1 },
  };

  const lengthOf = (row) => row.text.length + (row.cut ?? 0);

  function inOrder(entries, order) {
    const { value, sign } = ORDERS[order];
    const keyed = entries.map((entry) => ({ entry, key: value(entry.row) ?? null }));
    keyed.sort((a, b) => {
      if (a.key === null || b.key === null) return (a.key === null) - (b.key === null);
      return sign * (a.key - b.key);
    });
    return keyed.map(({ entry }) => entry);
  }

  /* A row's picture: colour and form tell its kinds. */
  function glyph(row) {
    const kinds = kindsOf(row);
    const text = kinds.join(", ");
    return el("span", { class: `glyph ${kinds.join(" ")}`, role: "img", "aria-label": text, title: text });
  }

  /* The verdict on a row in words, behind its picture where there is one. */
  function verdict(row, picture = null) {
    const kinds = kindsOf(row).filter((kind) => kind !== "teacher");
    const reason = row.reason && row.reason !== "right" ? [": ", Page.short(row.reason)] : null;
    return el("p", { class: "verdict" }, picture, el("b", {}, kinds.join(", ")), reason);
  }

  /* What a group's rows are called: rollouts are counted; a teacher has its source's name. */
  function names(group) {
    let number = 0;
    const ofRollout = (row) => `Rollout ${++number}${row.off_policy ? ", begun by a teacher" : ""}`;
    return group.rows.map((row) => (row.source === undefined ? ofRollout(row) : `Teacher ${row.source}`));
  }

  /* Of how many rollouts of a group how many are right; a teacher that entered is none. */
  function solved(group) {
    const rollouts = group.rows.filter((row) => row.source === undefined);
    return { right: rollouts.filter(KINDS.right.test).length, n: rollouts.length };
  }

  Object.assign(Page, { KINDS, ORDERS, passes, inOrder, lengthOf, glyph, verdict, names, solved });
})();
