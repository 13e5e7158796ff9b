// SPDX-License-Identifier: BSD-3-Clause

// What the tests see in place of a style sheet.
export {};
