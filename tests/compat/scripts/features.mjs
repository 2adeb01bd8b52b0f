// What the scripts for Node share: features as functions, run one after the other, one JSON line each.

export const BASE_URL = process.env.COMPAT_BASE_URL; // with /v1
export const ROOT_URL = BASE_URL.replace(/\/v1$/, '');
export const KEY = process.env.COMPAT_KEY;
export const MODEL = process.env.COMPAT_MODEL;
export const EMBEDDING_MODEL = process.env.COMPAT_EMBEDDING_MODEL;

const features = [];

/** Register an async function as a feature; an exception is a failure. */
export function feature(name, run) {
  features.push([name, run]);
}

/** Run what is registered and print one JSON line for each. */
export async function run() {
  for (const [name, work] of features) {
    let line = { feature: name, ok: true, detail: '' };
    try {
      await work();
    } catch (error) {
      line = { feature: name, ok: false, detail: `${error.name}: ${error.message}`.slice(0, 1000) };
    }
    console.log(JSON.stringify(line));
  }
}

/** Raise an error unless `condition` holds. */
export function check(condition, what) {
  if (!condition) throw new Error(`expected ${what}`);
}

/** Check that there are `count` embeddings of one length, and that no two are the same. */
export function checkVectors(vectors, count) {
  check(vectors.length === count && vectors[0].length > 0, `${count} vectors, not ${vectors.length}`);
  check(vectors.every((vector) => vector.length === vectors[0].length), 'vectors of one length');
  check(new Set(vectors.map(String)).size === count, 'vectors that differ');
}

/** Check the object that the schema of the scripts describes. */
export function checkColours(value) {
  check(['red', 'green'].includes(value.colour) && Number.isInteger(value.count), `a colour, not ${JSON.stringify(value)}`);
}
